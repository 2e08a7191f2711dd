"""Heads: for each stage but the last a small network from its output to the model's, which gives it a local loss.

>>> head = derive_head(captured, boundary, stage, budget=0.1, init="fresh", seed=0)
>>> loss_fn(head(X), target)             # the user's own loss

A head is derived like an AuxNet, from the rest of the model as one stage: residual blocks are dropped until it costs at
most `budget` times the stage, channels are thinned if that is not enough, and the model's last layers (norm, pooling,
classifier) stay. If nothing can be dropped or thinned, an adapter leads to these layers.
"""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from lpcompile.errors import PlanError
from lpcompile.passes.auxnet.derive import AuxNet, aux_io, derive, flops_of
from lpcompile.passes.auxnet.drop_blocks import boundary_values
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.dataflow import dataflow
from lpcompile.passes.graph.module import TwoModeModule
from lpcompile.passes.graph.residual import residuals
from lpcompile.passes.split.split import Place, Stage, StageIO, split, stage_io


def derive_head(captured: Captured, place: Place, stage: Stage, *, budget: float, init: str, seed: int) -> AuxNet:
    """The head of `stage`, which ends at `place`; the shares in its record are of the stage's FLOPs."""
    rest, outputs = tail(captured, place)
    own, all_of_it = _flops(stage), _flops(rest)
    head = derive(
        rest,
        budget=min(1.0, budget * sum(own) / (sum(all_of_it) or 1.0)),
        init=init,
        seed=seed,
        batch_free=captured._lp.batch_free,
        head=True,
    )
    if head.record.kind == "whole":
        steps = len(rest._lp_graphs[True].nodes)
        raise PlanError(
            f"no head can be derived for stage {seed}: what follows it ({steps} operations) has no residual block to "
            f"leave out, no channels to thin and no shape that an adapter reaches; give the trainer heads=[...] of "
            f"your own, or use a method without heads"
        )
    io = aux_io(head)
    _set_io(head, StageIO(io.lams, io.inputs, (), outputs))
    known = head.record
    forward, backward = (
        share * theirs / (mine or 1.0)
        for share, theirs, mine in zip((known.forward_share, known.backward_share), all_of_it, own, strict=True)
    )
    head._lp_set_record(replace(known, forward_share=forward, backward_share=backward))
    return head


def tail(captured: Captured, place: Place) -> tuple[Stage, tuple[int, ...]]:
    """The rest of the model after a cut, as a stage whose boundary is the model's outputs, and their indices.

    Intermediate outputs (attention caches, hidden states, side classifiers) are left out: they would keep every block
    alive.
    """
    rest = split(captured, [place])[1]
    io, graph = stage_io(rest, True), rest._lp_graphs[True]
    values = boundary_values(graph, len(io.outputs))
    depth = _depths(rest, values)
    most = max((d for d in depth if d is not None), default=None)
    if most is None:
        raise PlanError(
            f"no head can be derived after step {place.position} of the graph: no output of the model is made of what "
            f"crosses there; ask for another K, or move the cut with pins={{'cut': ...}}"
        )
    kept = [i for i, d in enumerate(depth) if d is None or d == most]
    end = next(n for n in graph.nodes if n.op == "output")
    results = tuple(values[i] for i in kept)
    end.args = (results[0] if len(results) == 1 else results,)
    specs = tuple(v.meta["spec"] for v in results)
    _set_io(rest, StageIO(io.lams, io.inputs, specs, ()))
    return rest, tuple(io.outputs[i] for i in kept)


def _set_io(module: TwoModeModule, io: StageIO) -> None:
    module.__dict__["_lp_io"] = module._lp_notes["_lp_io"] = {True: io, False: io}  # notes are copied with the module


def _depths(rest: Stage, values: list[fx.Node]) -> list[int | None]:
    """Number of residual blocks that each value depends on; None if it does not depend on the boundary."""
    import networkx

    graph = rest._lp_graphs[True]
    flow = dataflow(graph)
    lams = [n for n in graph.nodes if n.op == "placeholder"][: len(stage_io(rest, True).lams)]
    blocks = {b.node for b in residuals(graph, rest)}
    closures = [networkx.ancestors(flow, value) | {value} for value in values]
    return [None if closure.isdisjoint(blocks.union(lams)) else len(closure & blocks) for closure in closures]


def _flops(stage: Stage) -> tuple[float, float]:
    found = [flops_of(n) for n in stage._lp_graphs[True].nodes]
    return sum(f for f, _ in found), sum(b for _, b in found)
