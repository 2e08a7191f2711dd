"""Derive an AuxNet from a stage: a small network from the stage's input to its output.

>>> aux = derive(stage, budget=0.1)
>>> lam_next = aux(lam)                # called as the stage is
>>> aux.record                         # what was kept, dropped and thinned

Shape-preserving residual blocks are dropped, evenly, until the rest costs at most `budget` times the stage; the rest of
the budget pays for one more block with fewer channels. If that is not enough, the remaining channels are thinned, then
branches beside a projection are dropped. A stage without residual blocks gets an adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from lpcompile.errors import LpError, PlanError, UsageError
from lpcompile.passes.auxnet import low_rank
from lpcompile.passes.auxnet.adapter import Adapter, possible
from lpcompile.passes.auxnet.channels import thin
from lpcompile.passes.auxnet.check import Mismatch, checked_flops
from lpcompile.passes.auxnet.choice import Choice, choose
from lpcompile.passes.auxnet.drop_blocks import boundary_values, rewrite
from lpcompile.passes.auxnet.layers import INITS, aux_layers, refresh
from lpcompile.passes.graph.dataflow import dataflow
from lpcompile.passes.graph.module import TwoModeModule
from lpcompile.passes.split.split import Stage, StageIO, stage_io

FORMS = ("derived", "tied")
FRESH_SEED = 1  # of fresh weights: the same on every rank, independent of the user's generators


@dataclass(frozen=True)
class AuxRecord:
    """How an AuxNet was derived."""

    kind: str  # "derived", "tied", "adapter", "whole" (a copy of the stage: nothing smaller runs), "cut" or "user"
    init: str
    kept: tuple[str, ...] = ()  # blocks by name
    dropped: tuple[str, ...] = ()
    thinned: tuple[str, ...] = ()  # blocks or layers with fewer channels
    zeroed: tuple[str, ...] = ()  # parameters of the model that must start at zero
    split: tuple[str, ...] = ()  # layers replaced by two thinner ones
    forward_share: float = 0.0  # estimated, of the stage's forward cost
    backward_share: float = 0.0
    note: str = ""  # why it is no smaller form of the stage, where that is no choice
    made: str = ""  # which piece of a smaller model it is, where it was cut from one


class AuxNet(TwoModeModule):
    """`aux(*lams, *inputs)` returns the next boundary's tensors; it takes the same arguments as its stage."""

    _lp_io: dict[bool, StageIO]
    _lp_record: AuxRecord

    @property
    def record(self) -> AuxRecord:
        return self._lp_record

    def _lp_set_record(self, record: AuxRecord) -> None:
        self.__dict__["_lp_record"] = self._lp_notes["_lp_record"] = record  # notes are copied with the module


def aux_io(aux: AuxNet) -> StageIO:
    return aux._lp_io[True]


def derive(
    stage: Stage,
    *,
    budget: float = 0.1,
    costs: Mapping[str, tuple[float, float]] | None = None,
    form: str = "derived",
    init: str = "fresh",
    seed: int = 0,
    batch_free: bool = True,
    shared: Collection[int] = (),
    head: bool = False,
) -> AuxNet:
    """The AuxNet of a stage; the model does not change.

    costs: (forward, backward) by node name; FLOPs by default. batch_free: the stage runs at any batch size, so the
    AuxNet must too. shared: ids of parameters that other stages use. head: derive a head from the rest of the model
    (see `auxnet.head`): thin it even without blocks, and keep the model's last layers.

    For a consistent start, set the parameters in `record.zeroed` to zero, then copy the weights with `take_weights`.
    """
    if form not in FORMS:
        raise UsageError(f"aux={form!r} is not one of {', '.join(FORMS)}")
    if init not in INITS:
        raise UsageError(f"aux_init={init!r} is not one of {', '.join(INITS)}")
    graph = stage._lp_graphs[True]
    prices = {n.name: costs.get(n.name, (0.0, 0.0)) if costs else flops_of(n) for n in graph.nodes}
    total = (sum(f for f, _ in prices.values()) or 1.0, sum(b for _, b in prices.values()) or 1.0)
    sums = {n: f + b for n, (f, b) in prices.items()}
    note = ""
    try:  # a stranger's layer may refuse to be copied, thinned or run by itself: that must not end the compilation
        choice = choose(stage, graph, sums, budget, tied=form == "tied", init=init, shared=shared, head=head)
        aux = None if choice is None else _built(stage, choice, form, init, seed)
        if choice is not None and aux is not None and _flops_if_it_fits(aux, batch_free) is not None:
            parts = [prices.get(n.name, (0.0, 0.0)) for n in choice.graph.nodes]
            scales = [choice.scales.get(n.name, 1.0) for n in choice.graph.nodes]
            spent = [sum(p[i] * s for p, s in zip(parts, scales, strict=True)) for i in (0, 1)]
            return _recorded(aux, _record(choice, form, init), spent[0] / total[0], spent[1] / total[1])
    except LpError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        note = f"its stage cannot be made smaller ({type(error).__name__}: {text})"
    try:
        return _adapter(stage, graph, budget, seed, init, batch_free, note, _last_layers if head else None, sums)
    except Exception as error:
        raise PlanError(
            f"no AuxNet can be made for {stage._lp_name} ({note or 'it has no residual blocks'}; an adapter fails: "
            f"{type(error).__name__}: {error}); train without AuxNets (method='stream' or '1f1b'), or give your own "
            f"with auxnet="
        ) from error


def _adapter(
    stage: Stage,
    graph: fx.Graph,
    budget: float,
    seed: int,
    init: str,
    batch_free: bool,
    note: str,
    last_layers: Callable[..., fx.Node | None] | None,
    costs: Mapping[str, float],
) -> AuxNet:
    """An adapter, or a copy of the stage where no adapter fits."""
    until = last_layers(stage, graph, costs, budget) if last_layers is not None else None
    aux = _adapted(stage, graph, budget, seed, init, until)
    flops = _flops_if_it_fits(aux, batch_free)
    if flops is None:  # nothing smaller runs
        copied = rewrite(graph, stage, boundary_values(graph, len(aux_io(aux).boundary)), ())
        whole = assemble(stage, copied, aux_layers(stage, copied))
        return _recorded(whole, AuxRecord("whole", "copy", note=note), 1.0, 1.0)
    share = flops / (sum(flops_of(n)[0] for n in graph.nodes) or 1.0)
    return _recorded(aux, AuxRecord("adapter", "fresh", note=note), share, share)


def flops_of(node: fx.Node) -> tuple[float, float]:
    """Forward and backward FLOPs."""
    if node.op in ("placeholder", "output", "get_attr"):
        return 0.0, 0.0
    return float(node.meta.get("flops", 0)), float(node.meta.get("backward_flops", 0))


def _built(stage: Stage, choice: Choice, form: str, init: str, seed: int) -> AuxNet:
    found = aux_layers(stage, choice.graph, tied=form == "tied")
    for name, (makes, takes, keeps) in choice.thinned.items():
        thin(found[name], makes, takes, keeps)
    with torch.random.fork_rng(devices=_cuda(stage)):
        torch.manual_seed(FRESH_SEED + seed)
        for node in [n for n in choice.graph.nodes if n.op == "call_module" and str(n.target) in choice.ranks]:
            name = str(node.target)
            up = low_rank.insert(choice.graph, node)
            found[name], found[up] = low_rank.split_layer(found[name], choice.ranks[name], values=init != "fresh")
        if init == "fresh" and form != "tied":
            refresh(found.values())
    return assemble(stage, choice.graph, found)


def _adapted(stage: Stage, graph: fx.Graph, budget: float, seed: int, init: str, until: fx.Node | None) -> AuxNet:
    """An adapter for each tensor of the boundary that is not an input handed on; with `until`, one adapter to that
    value, followed by the stage's own layers."""
    io = stage_io(stage, True)
    values = boundary_values(graph, len(io.boundary))
    ends = list(zip(values, io.boundary, strict=True)) if until is None else [(until, until.meta["spec"])]
    flops = budget * sum(flops_of(n)[0] for n in graph.nodes)
    device = next((t.device for t in (*stage.parameters(), *stage.buffers())), torch.device("cpu"))
    made: dict[str, nn.Module] = {}
    instead: dict[fx.Node, tuple[fx.Node, Callable[[fx.Graph, fx.Node], fx.Node]]] = {}
    for i, (value, spec) in enumerate(ends):
        source = _source(value)
        if value.op != "placeholder" and source is not None and possible(source.meta["spec"], spec):
            adapter = Adapter(f"adapter_{seed}_{i}", source.meta["spec"], spec, flops, device, made)
            instead[value] = (source, adapter.connect)
    with torch.random.fork_rng(devices=_cuda(stage)):
        torch.manual_seed(FRESH_SEED + seed)
        rewritten = rewrite(graph, stage, values, (), instead)
        found = aux_layers(stage, rewritten, given=made)
        if until is not None and init == "fresh":
            refresh(layer for name, layer in found.items() if name not in made)
    return assemble(stage, rewritten, found)


def _last_layers(stage: Stage, graph: fx.Graph, costs: Mapping[str, float], budget: float) -> fx.Node | None:
    """The first value on all paths from the boundary to the outputs after which half the budget is enough."""
    import networkx

    nodes: list[fx.Node] = list(graph.nodes)  # the last is the output
    follower = networkx.immediate_dominators(dataflow(graph).reverse(copy=False), nodes[-1])
    paths = [_followers(lam, follower) for lam in nodes[: len(stage_io(stage, True).lams)] if lam in follower]
    bottlenecks = set[fx.Node]().union(*paths[:1]).intersection(*paths)
    left, room = sum(costs.values()), budget * sum(costs.values()) / 2
    for node in nodes:
        left -= costs.get(node.name, 0.0)
        if node in bottlenecks and left <= room and _batched_float(node):
            return node
    return None


def _followers(node: fx.Node, follower: Mapping[fx.Node, fx.Node]) -> list[fx.Node]:
    """All nodes that every path from `node` passes, given the first of them for each node."""
    found: list[fx.Node] = []
    while node in follower and follower[node] is not node:  # the output has none, or itself in older networkx
        node = follower[node]
        found.append(node)
    return found


def _source(value: fx.Node) -> fx.Node | None:
    """The tensor that an adapter starts from: the largest float input that `value` depends on, or, if all inputs are
    ids, the first float computed from them (an embedding)."""
    import networkx

    ancestors = networkx.ancestors(dataflow(value.graph), value)
    floats = sorted(n for n in ancestors if n.op != "get_attr" and _batched_float(n))
    inputs = [n for n in floats if n.op == "placeholder"]
    return max(inputs, key=lambda n: n.meta["spec"].nbytes) if inputs else next(iter(floats), None)


def _batched_float(node: fx.Node) -> bool:
    spec = node.meta.get("spec")
    return spec is not None and possible(spec, spec)


def assemble(stage: Stage, graph: fx.Graph, found: dict[str, Any]) -> AuxNet:
    """An AuxNet module with the stage's inputs and boundary."""
    io = stage_io(stage, True)
    io = StageIO(io.lams, io.inputs, io.boundary, ())
    aux = AuxNet({True: graph, False: graph}, f"AuxNet_{stage._lp_name}", _lp_io={True: io, False: io})
    aux._lp_fill(stage, found)
    return aux


def _flops_if_it_fits(aux: AuxNet, batch_free: bool) -> float | None:
    """Forward FLOPs; None if the results do not match the boundary."""
    try:
        return checked_flops(aux, aux_io(aux).boundary, batch_free)
    except Mismatch:
        return None


def _record(choice: Choice, form: str, init: str) -> AuxRecord:
    names = list(dict.fromkeys(b.group for b in choice.blocks))
    left = {b.group for b in choice.blocks if b not in choice.dropped}
    cut = [f"{name} ({sizes[0]} channels)" for name, sizes in choice.thinned.items() if sizes[0] is not None]
    cut += [f"{name} (by way of {rank} channels)" for name, rank in choice.ranks.items()]
    return AuxRecord(
        form,
        "tied" if form == "tied" and init != "consistent" else init,
        kept=tuple(n for n in names if n in left),
        dropped=tuple(n for n in names if n not in left),
        thinned=tuple(cut),
        zeroed=choice.zeroed,
        split=tuple(choice.ranks),
    )


def _recorded(aux: AuxNet, record: AuxRecord, forward: float, backward: float) -> AuxNet:
    aux._lp_set_record(replace(record, forward_share=forward, backward_share=backward))
    return aux


def _cuda(stage: nn.Module) -> Sequence[torch.device]:
    return list({p.device for p in stage.parameters() if p.device.type == "cuda"})
