"""Heads: for each stage but the last a small network from its output to the model's, so that it has a loss of its own.

>>> head = derive_head(captured, boundary, stage, budget=0.1, init="fresh", seed=0)
>>> loss_fn(head(X), target)             # the user's loss, as it is

A head is derived as an AuxNet is, from all that follows the stage taken as one: residual blocks go until the rest costs
no more than `budget` of the stage, channels are thinned where that is not enough, and what the model ends with (norm,
pooling, classifier) stays. Where no block can go and nothing can be thinned, an adapter leads to that end.
"""

from __future__ import annotations

from dataclasses import replace

from torch import fx

from lpcompile.errors import PlanError
from lpcompile.passes.auxnet.derive import AuxNet, aux_io, derive, flops_of
from lpcompile.passes.auxnet.graph import boundary_values
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.residual import residuals
from lpcompile.passes.split.split import Place, Stage, StageIO, split, stage_io


def derive_head(captured: Captured, place: Place, stage: Stage, *, budget: float, init: str, seed: int) -> AuxNet:
    """The head of `stage`, which ends at `place`; its shares in the record are of the stage's FLOPs."""
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
    io = StageIO(io.lams, io.inputs, (), outputs)
    head.__dict__["_lp_io"] = head._lp_notes["_lp_io"] = {True: io, False: io}
    known = head.record
    forward, backward = (
        share * theirs / (mine or 1.0)
        for share, theirs, mine in zip((known.forward_share, known.backward_share), all_of_it, own, strict=True)
    )
    head._lp_set_record(replace(known, forward_share=forward, backward_share=backward))
    return head


def tail(captured: Captured, place: Place) -> tuple[Stage, tuple[int, ...]]:
    """All that follows a cut as one stage that gives the model's outputs as if they were a boundary; and which.

    Outputs that are made on the way (caches of attention, hidden states, side classifiers) are left out: they would
    keep every block alive.
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
    seen = StageIO(io.lams, io.inputs, specs, ())
    rest.__dict__["_lp_io"] = rest._lp_notes["_lp_io"] = {True: seen, False: seen}
    return rest, tuple(io.outputs[i] for i in kept)


def _depths(rest: Stage, values: list[fx.Node]) -> list[int | None]:
    """How many residual blocks each value is made of; None for what does not depend on the boundary."""
    graph = rest._lp_graphs[True]
    lams = [n for n in graph.nodes if n.op == "placeholder"][: len(stage_io(rest, True).lams)]
    blocks = {b.node for b in residuals(graph, rest)}
    below: dict[fx.Node, frozenset[fx.Node]] = {}  # the blocks and lams that a node is made of
    for node in graph.nodes:
        sources = [below[n] for n in node.all_input_nodes]
        own = {node} if node in blocks or node in lams else set()
        below[node] = frozenset(own).union(*sources)
    return [len(below[v] & blocks) if below[v] else None for v in values]


def _flops(stage: Stage) -> tuple[float, float]:
    found = [flops_of(n) for n in stage._lp_graphs[True].nodes]
    return sum(f for f, _ in found), sum(b for _, b in found)
