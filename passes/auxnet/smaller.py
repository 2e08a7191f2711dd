"""AuxNets cut from a smaller model of the family: `auxnet=resnet20()` for a ResNet-110, as the paper makes them.

The smaller model is captured on the same inputs and cut where its tensors have the boundaries' shapes; of several such
places the one nearest in depth (share of the forward FLOPs before it). Where only the number of channels differs, a
pointwise layer behind the piece maps to the boundary's channels, and one before the next piece maps back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import fx, nn

from lpcompile.core.stage_io import StageIO, TensorSpec
from lpcompile.errors import LpError, PlanError
from lpcompile.passes.auxnet.adapter import noted
from lpcompile.passes.auxnet.check import Mismatch, checked_flops
from lpcompile.passes.auxnet.derive import FRESH_SEED, AuxNet, AuxRecord
from lpcompile.passes.auxnet.layers import aux_layers
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.liveness import liveness
from lpcompile.passes.split.cuts import Cut, cuts
from lpcompile.passes.split.split import Stage, split, stage_io
from lpcompile.passes.split.units import units

KIND = "cut"
FAR = 1e9  # of a choice of cuts that cannot be
Specs = tuple[TensorSpec, ...]


class SmallerModel:
    """A model whose pieces become AuxNets; captured with the other model, or `error` says why it cannot be."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.captured: Captured | None = None
        self.error: LpError | None = None

    def capture(self, capture: Callable[[nn.Module], Captured]) -> None:
        try:
            self.captured = capture(self.model)
        except LpError as error:
            self.error = error

    def __reduce__(self) -> Any:  # another process captures it again
        return SmallerModel, (self.model,)


@dataclass(frozen=True)
class SmallerCut:
    """A cut of the smaller model, and how deep it lies: the share of forward FLOPs before it."""

    cut: Cut
    depth: float
    name: str


def pieces(smaller: SmallerModel, stages: Sequence[Stage]) -> list[AuxNet]:
    """An AuxNet for each stage but the last, with layers of its own: the smaller model is not changed."""
    if smaller.captured is None:
        raise PlanError(
            f"auxnet={_name(smaller)} cannot be cut into AuxNets, for it cannot be captured: {smaller.error}"
        ) from smaller.error
    wanted = [stage_io(stage, True).boundary for stage in stages[:-1]]
    width = max((len(specs) for specs in wanted), default=1)
    chosen = choose(_name(smaller), places(smaller.captured, width), wanted, depths(stages))
    parts = split(smaller.captured, [place.cut for place in chosen])
    starts = ["the input", *(place.name for place in chosen)]
    found = []
    for k, part in enumerate(parts[:-1]):
        made = f"{_name(smaller)} {starts[k]} … {starts[k + 1]}" if k else f"{_name(smaller)} up to {starts[k + 1]}"
        found.append(_Piece(smaller.captured, stages[k], part, k, made).build())
    return found


def depths(stages: Sequence[Stage]) -> list[float]:
    """Of each boundary the share of the model's forward FLOPs before it."""
    own = [_flops(stage) for stage in stages]
    return [before / (sum(own) or 1.0) for before in accumulate(own[:-1])]


def places(captured: Captured, width: int) -> list[SmallerCut]:
    """Everywhere that the smaller model may be cut, with up to `width` tensors."""
    live = liveness(captured._lp_graphs[True], captured._lp.model)
    before = list(accumulate(float(n.meta["flops"]) for n in live.steps))
    legal = [c for c in cuts(captured, max_width=width) if c.legal]
    found = [(u.name, u.cut) for u in units(captured, legal, every_shape=True) if u.cut is not None] if legal else []
    return [SmallerCut(cut, before[cut.position] / (before[-1] or 1.0), name) for name, cut in found]


def choose(
    model: str, offered: Sequence[SmallerCut], wanted: Sequence[Specs], depths: Sequence[float]
) -> list[SmallerCut]:
    """A place for each boundary, deeper from boundary to boundary, with the least sum of differences in depth."""
    fitting = []
    for k, specs in enumerate(wanted):
        same = [p for p in offered if _same(p.cut.specs, specs)]
        near = same or [p for p in offered if _adaptable(p.cut.specs, specs)]
        if not near:
            raise _nothing_fits(model, offered, k + 1, specs)
        fitting.append(near)
    best: dict[int, tuple[float, list[SmallerCut]]] = {-1: (0.0, [])}  # by the position of the last place
    for near, depth in zip(fitting, depths, strict=True):
        after: dict[int, tuple[float, list[SmallerCut]]] = {}
        for place in near:
            before = [found for last, found in best.items() if last < place.cut.position]
            if before:
                cost, chain = min(before, key=lambda found: found[0])
                after[place.cut.position] = (cost + abs(place.depth - depth), [*chain, place])
        if not after:
            raise _too_few(model, fitting, wanted)
        best = after
    return min(best.values(), key=lambda found: found[0])[1]


def _nothing_fits(model: str, offered: Sequence[SmallerCut], boundary: int, specs: Specs) -> PlanError:
    count: dict[str, int] = {}
    for place in offered:
        text = ", ".join(map(str, place.cut.specs))
        count[text] = count.get(text, 0) + 1
    offers = "; ".join(f"{text} ({n} {'place' if n == 1 else 'places'})" for text, n in count.items())
    return PlanError(
        f"auxnet={model} cannot be cut for boundary {boundary}, which carries {', '.join(map(str, specs))}: it offers "
        f"{offers or 'no place to cut at'}. Give a smaller model of the same family (one whose tensors differ in "
        f"channels at most), a factory, or a list of modules, one for each boundary"
    )


def _too_few(model: str, fitting: Sequence[Sequence[SmallerCut]], wanted: Sequence[Specs]) -> PlanError:
    tight = min(range(len(fitting)), key=lambda k: len(fitting[k]) - sum(s == wanted[k] for s in wanted))
    same = [k + 1 for k, specs in enumerate(wanted) if specs == wanted[tight]]
    count = f"{len(fitting[tight])} {'place' if len(fitting[tight]) == 1 else 'places'}"
    return PlanError(
        f"auxnet={model} has {count} for boundaries {', '.join(map(str, same))}, which carry "
        f"{', '.join(map(str, wanted[tight]))} and need one each; ask for fewer stages or give a deeper model"
    )


def _same(offered: Specs, wanted: Specs) -> bool:
    return [(s.shape, s.dtype) for s in offered] == [(s.shape, s.dtype) for s in wanted]


def _adaptable(offered: Specs, wanted: Specs) -> bool:
    """Whether a pointwise layer makes one of the other: single float tensors that differ in channels alone."""
    if len(offered) != 1 or len(wanted) != 1:
        return False
    (a,), (b,) = offered, wanted
    if a.dtype != b.dtype or not a.dtype.is_floating_point or len(a.shape) != len(b.shape) or len(a.shape) < 2:
        return False
    dim = channel_dim(a)
    if any(s.batch and s.batch[dim] for s in (a, b)):
        return False
    return a.shape[:dim] + a.shape[dim + 1 :] == b.shape[:dim] + b.shape[dim + 1 :]


def channel_dim(spec: TensorSpec) -> int:
    """Images have channels in dimension 1, everything else in the last."""
    return 1 if len(spec.shape) == 4 else len(spec.shape) - 1


class _Piece:
    """Builds one AuxNet: the piece's own graph, between adapters where its channels are not the boundary's."""

    def __init__(self, captured: Captured, stage: Stage, part: Stage, k: int, made: str) -> None:
        self.model, self.stage, self.part, self.k, self.made = captured._lp.model, stage, part, k, made
        self.wanted, self.own = stage_io(stage, True), stage_io(part, True)
        self.graph = fx.Graph()
        self.found = aux_layers(part, part._lp_graphs[True])
        self.adapters: list[str] = []

    def build(self) -> AuxNet:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(FRESH_SEED + self.k)
            self._copy()
        self.graph.lint()
        inputs = tuple(i for i in self.own.inputs)
        io = StageIO(self.wanted.lams, inputs, self.wanted.boundary, ())
        notes = {"_lp_io": {True: io, False: io}, "_lp_origin": (self.model,)}  # in a tuple it is no submodule
        aux = AuxNet({True: self.graph, False: self.graph}, f"AuxNet_{self.stage._lp_name}", **notes)
        aux._lp_fill(self.model, self.found)
        made = "; ".join([self.made, *self.adapters])
        aux._lp_set_record(AuxRecord(KIND, "given", made=made))
        try:
            flops = checked_flops(aux, self.wanted.boundary)
        except Mismatch as mismatch:
            raise PlanError(f"the AuxNet for boundary {self.k + 1}, {made}, does not fit: {mismatch}") from mismatch
        share = flops / (_flops(self.stage) or 1.0)
        aux._lp_set_record(replace(aux.record, forward_share=share, backward_share=share))
        return aux

    def _copy(self) -> None:
        copies: dict[fx.Node, fx.Node] = {}
        nodes = list(self.part._lp_graphs[True].nodes)
        given = [n for n in nodes if n.op == "placeholder"]
        for i, node in enumerate(given):
            copies[node] = self.graph.placeholder(str(node.target))
            copies[node].meta = dict(node.meta)
            if i < len(self.wanted.lams):
                copies[node].meta["spec"] = self.wanted.lams[i]
        for i, (node, spec) in enumerate(zip(given, self.wanted.lams, strict=False)):
            copies[node] = self._adapted(f"adapter_in_{i}", copies[node], spec, self.own.lams[i])
        for node in nodes:
            if node.op == "output":
                values = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
                ends = zip(values, self.own.boundary, self.wanted.boundary, strict=False)
                made = [self._adapted(f"adapter_out_{i}", copies[v], a, b) for i, (v, a, b) in enumerate(ends)]
                self.graph.output(made[0] if len(made) == 1 else tuple(made))
            elif node.op != "placeholder":
                copies[node] = self.graph.node_copy(node, copies.__getitem__)
                copies[node].meta = dict(node.meta)

    def _adapted(self, name: str, node: fx.Node, source: TensorSpec, target: TensorSpec) -> fx.Node:
        if source.shape == target.shape:
            return node
        here, there = source.shape[channel_dim(source)], target.shape[channel_dim(target)]
        device = next((t.device for t in (*self.model.parameters(), *self.model.buffers())), torch.device("cpu"))
        layer: nn.Module
        if len(source.shape) == 4:
            layer = nn.Conv2d(here, there, 1, device=device, dtype=target.dtype)
        else:
            layer = nn.Linear(here, there, device=device, dtype=target.dtype)
        self.found[name] = layer
        self.adapters.append(f"adapter of {here} to {there} channels")
        return noted(self.graph.create_node("call_module", name, (node,)))


def _flops(stage: Stage) -> float:
    return sum(float(n.meta.get("flops", 0)) for n in stage._lp_graphs[True].nodes if n.op != "placeholder")


def _name(smaller: SmallerModel) -> str:
    return type(smaller.model).__name__
