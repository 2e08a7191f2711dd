"""Split a captured model into stage modules.

>>> stages = split(captured, chosen)
>>> lam = stages[0](x)
>>> out = stages[1](lam)

Each stage is an fx.GraphModule over the user's own layers. Its inputs are the auxiliary variables of the boundary
before it (`lam`, or `lam_0`, `lam_1`, ... for a wider boundary) and the model inputs that it reads (ids, masks). Cheap
values that several stages need are recomputed in each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Protocol

import torch
from torch import fx, nn

from lpcompile.core.stage_io import StageIO as StageIO
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.batch import symbol
from lpcompile.passes.graph.calls import batch_of, device_of
from lpcompile.passes.graph.dataflow import dataflow
from lpcompile.passes.graph.liveness import liveness
from lpcompile.passes.graph.module import TwoModeModule, install


class Place(Protocol):
    """A position to cut at: a Cut, or a plan's boundary."""

    @property
    def position(self) -> int: ...

    @property
    def eval_position(self) -> int: ...


class Stage(TwoModeModule):
    """One stage: `stage(*lams, *inputs)` returns the next boundary's tensors, then the model outputs computed here.

    A single result is returned bare, several as a tuple; `stage_io(stage)` describes them.
    """

    _lp_io: dict[bool, StageIO]


def stage_io(stage: Stage, training: bool | None = None) -> StageIO:
    return stage._lp_io[stage.training if training is None else training]


def split(captured: Captured, chosen: Sequence[Place]) -> tuple[Stage, ...]:
    """Split at the chosen cuts (legal ones, in order). The stages share the model's parameters."""
    model, graphs = captured._lp.model, captured._lp_graphs
    train = _Splitter(graphs[True], model, [c.position for c in chosen])
    evaluate = train
    if graphs[False] is not graphs[True]:
        evaluate = _Splitter(graphs[False], model, [c.eval_position for c in chosen])
    parts = [{True: train.part(k), False: evaluate.part(k) if evaluate is not train else None} for k in train.stages]
    stages = []
    for k, part in enumerate(parts):
        (graph, io), other = part[True], part[False]  # type: ignore[misc]
        eval_graph, eval_io = (graph, io) if other is None else other
        state = {}
        for node in (*graph.nodes, *eval_graph.nodes):
            if node.op in ("call_module", "get_attr"):
                state[node.target] = _resolve(captured, node.target)
        stage = Stage({True: graph, False: eval_graph}, f"Stage{k}", _lp_io={True: io, False: eval_io})
        stage._lp_fill(model, state)
        stages.append(stage)
    _place_unused(model, stages)
    return tuple(stages)


class _Splitter:
    """One graph and its cut positions."""

    def __init__(self, graph: fx.Graph, model: nn.Module, positions: list[int]) -> None:
        self.live = liveness(graph, model)
        self.inputs = [n for n in graph.nodes if n.op == "placeholder"]
        self.ends = [*positions, len(self.live.steps) - 1]
        self.stages = range(len(self.ends))

    def part(self, k: int) -> tuple[fx.Graph, StageIO]:
        return _Part(self, k).build()

    def begin(self, k: int) -> int:
        return 0 if k == 0 else self.ends[k - 1] + 1

    def crossing(self, k: int) -> list[fx.Node]:
        """The values of the boundary before stage k."""
        return self.live.live[self.ends[k - 1]] if k > 0 else []

    def outputs(self, k: int) -> list[int]:
        """Indices of the model outputs that stage k returns: those it computes. The last stage also returns outputs
        that no stage computes (inputs, cheap values)."""
        found = []
        for i, node in enumerate(self.live.outputs):
            step = self.live.index.get(node)
            made_here = step is not None and not self.live.is_cheap(node) and self.begin(k) <= step <= self.ends[k]
            adrift = step is None or self.live.is_cheap(node)
            if made_here or (adrift and k == len(self.ends) - 1):
                found.append(i)
        return found


class _Part:
    """Builds the graph of one stage."""

    def __init__(self, splitter: _Splitter, k: int) -> None:
        self.splitter, self.k, self.live = splitter, k, splitter.live
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.lams = splitter.crossing(k)
        self.steps = self.live.steps[splitter.begin(k) : splitter.ends[k] + 1]
        self.results = splitter.crossing(k + 1) if k + 1 < len(splitter.ends) else []
        self.outputs = splitter.outputs(k)

    def build(self) -> tuple[fx.Graph, StageIO]:
        again = self._again()
        inputs = self._inputs(again)
        written = {key for n in (*self.steps, *again) for key in n.meta["writes"]}
        for i, value in enumerate(self.lams):
            name = "lam" if len(self.lams) == 1 else f"lam_{i}"
            self._placeholder(value, name, clone=value.meta["storage"] in written)
        for node in inputs:
            self._placeholder(node, str(node.target), clone=False)
        for node in sorted({*again, *self.steps}, key=self.live.index.__getitem__):
            self._copy(node)
        wanted = [*self.results, *(self.live.outputs[i] for i in self.outputs)]
        values = tuple(self._get(n) for n in wanted)
        self.graph.output(values[0] if len(values) == 1 else values)
        self._move_clones_last()
        self.graph.lint()
        return self.graph, StageIO(
            tuple(v.meta["spec"] for v in self.lams),
            tuple(self.splitter.inputs.index(n) for n in inputs),
            tuple(v.meta["spec"] for v in self.results),
            tuple(self.outputs),
        )

    def _again(self) -> list[fx.Node]:
        """Cheap steps of earlier stages that this one depends on and recomputes."""
        begin = self.splitter.begin(self.k)
        mine = {*self.steps, *self.lams}
        wanted = [s for n in self.steps for s in n.all_input_nodes]
        wanted += [self.live.outputs[i] for i in self.outputs]
        found: set[fx.Node] = set()
        for value in dict.fromkeys(wanted):
            if value not in mine and value in self.live.index:
                found.update(n for n in self.live.remade(value, begin - 1) if self.live.index[n] < begin)
        return sorted(found, key=self.live.index.__getitem__)

    def _inputs(self, again: list[fx.Node]) -> list[fx.Node]:
        """The model inputs that this stage reads, for itself or for a size that no lam tells."""
        used = {s for n in (*self.steps, *again) for s in n.all_input_nodes}
        used |= {self.live.outputs[i] for i in self.outputs}
        symbols = [s for s in used if "symbol" in s.meta]
        sizes = [s for s in symbols if s.meta["symbol"] != "device"]
        if (symbols and not self.lams) or (sizes and not self._batch_source()):
            used |= _origins(symbols)
        used |= _origins([s for s in sizes if any(b.meta.get("symbol") == "edges" for b in (s, *s.all_input_nodes))])
        return [n for n in self.splitter.inputs if n in used]

    def _batch_source(self) -> tuple[fx.Node, int, int] | None:
        """A lam, and its dimension and multiple, to read the batch size from."""
        for value in self.lams:
            for dim, multiple in enumerate(value.meta["spec"].batch):
                if multiple:
                    return value, dim, multiple
        return None

    def _placeholder(self, value: fx.Node, name: str, clone: bool) -> None:
        node = self.graph.placeholder(name)
        node.meta = dict(value.meta)
        if clone:  # this stage writes into it, and the boundary's tensor must not change
            node = self.graph.call_method("clone", (node,))
            node.meta = dict(value.meta)
        self.copies[value] = node

    def _move_clones_last(self) -> None:
        """Placeholders must precede all other nodes."""
        last = [n for n in self.graph.nodes if n.op == "placeholder"]
        for node in [n for n in self.graph.nodes if n.op == "call_method" and n.target == "clone"]:
            if last and node < last[-1]:
                last[-1].append(node)

    def _get(self, node: fx.Node) -> fx.Node:
        if node not in self.copies:
            if node.op == "get_attr":
                self._copy(node)
            elif "symbol" in node.meta:
                self.copies[node] = self._symbol(node)
            else:
                raise AssertionError(f"{node} is neither made in stage {self.k} nor carried to it")
        return self.copies[node]

    def _copy(self, node: fx.Node) -> None:
        copy = self.graph.node_copy(node, self._get)
        copy.meta = dict(node.meta)
        self.copies[node] = copy

    def _symbol(self, node: fx.Node) -> fx.Node:
        """The batch size or device, read from a lam where there is one."""
        source = self._batch_source()
        if node.meta["symbol"] == "device" and self.lams:
            made = self.graph.call_function(device_of, (self.copies[self.lams[0]],))
        elif node.meta["symbol"] == "batch" and source is not None:
            value, dim, multiple = source
            made = self.graph.call_function(batch_of, (self.copies[value], dim, multiple))
        else:
            made = self.graph.node_copy(node, self._get)
        made.meta = symbol(node.meta["symbol"])
        return made


def _origins(symbols: list[fx.Node]) -> set[fx.Node]:
    """The placeholders that symbols are computed from."""
    if not symbols:
        return set()
    import networkx

    flow = dataflow(symbols[0].graph)
    ancestors = set[fx.Node](symbols).union(*(networkx.ancestors(flow, s) for s in symbols))
    return {n for n in ancestors if n.op == "placeholder"}


def _resolve(captured: Captured, target: str) -> Any:
    value = registered(captured, target)
    return plain_attribute(captured._lp.model, target) if value is None else value


def plain_attribute(root: nn.Module, target: str) -> Any:
    """The value at a dotted path that ends in a plain attribute of a layer."""
    value: Any = root
    for part in target.split("."):
        value = getattr(value, part)
    return value


def registered(root: nn.Module, target: str) -> Any:
    """The module, parameter or buffer at a dotted path, whatever its names; None if there is none."""
    value: Any = root
    for part in target.split("."):
        kinds = (value._modules, value._parameters, value._buffers) if isinstance(value, nn.Module) else ()
        value = next((entries[part] for entries in kinds if part in entries), None)
    return value


def _place_unused(model: nn.Module, stages: list[Stage]) -> None:
    """Assign unused entries of the model's state_dict to the stage that holds their closest relatives by name."""
    owned = [set(stage.state_dict(keep_vars=True)) for stage in stages]
    tensors = dict(model.state_dict(keep_vars=True))
    where: dict[int, int] = {}  # aliases of a tied parameter go to its stage
    for k, stage in enumerate(stages):
        for tensor in stage.state_dict(keep_vars=True).values():
            if isinstance(tensor, torch.Tensor):
                where.setdefault(id(tensor), k)
    for key, tensor in tensors.items():
        if any(key in keys for keys in owned) or not isinstance(tensor, torch.Tensor):
            continue
        home = where.get(id(tensor))
        if home is None:
            home = max(range(len(stages)), key=lambda k: max((_kinship(key, o) for o in owned[k]), default=0))
        install(stages[home], key, tensor)
        owned[home].add(key)
    for stage in stages:
        stage._lp_follow(model)


def _kinship(a: str, b: str) -> int:
    return common_depth(a.split(".")[:-1], b.split(".")[:-1])


def common_depth(a: Sequence[str], b: Sequence[str]) -> int:
    """Number of modules that enclose both of two module paths."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
