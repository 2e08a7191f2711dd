"""The rows of a Plan, from a split and what was derived for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lpcompile.core.cost import Profile, UnitCost
from lpcompile.core.method import BatchFacts, no_choice
from lpcompile.core.micro_batches import bubble_of
from lpcompile.core.plan import AuxPlan, BoundaryPlan, Plan, StagePlan
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.batch import batch_size
from lpcompile.passes.graph.liveness import liveness
from lpcompile.passes.partition.evaluate import Partition
from lpcompile.passes.split.cuts import Cut, state_uses
from lpcompile.passes.split.split import stage_io
from lpcompile.passes.split.units import Unit
from lpcompile.planning.arrange import Arrangement, cuts_of
from lpcompile.planning.interaction import NOTE, has_batch_norm, interacts
from lpcompile.planning.options import Options


def make_plan(
    captured: Captured,
    found: list[Unit],
    costs: Profile,
    arrangement: Arrangement,
    tensors: list[torch.Tensor],
    width: int,
    micro: int,
    checked: str,
    options: Options,
) -> Plan:
    """Gather what the passes found into one frozen record."""
    best, stages = arrangement.best, arrangement.stages
    batch, free = batch_size(tensors), captured._lp.batch_free
    about_samples = (NOTE,) if interacts(captured, tensors) and not has_batch_norm(captured) else ()
    facts = BatchFacts(best.world, batch, free, norm=interacts(captured, tensors))
    chosen = micro if options.traits.micro_choices is not no_choice and best.world == options.K else 0
    step, lower_bound = predicted(best, costs, bubble_of(options.traits, facts, chosen), options)
    names = [name for name, _ in captured._lp.signature.inputs]
    ends = [*best.cuts, len(found)]
    rows, boundaries = [], []
    for k, end in enumerate(ends):
        own = list(stages[k].parameters())
        row = stage_row(
            k,
            costs.units,
            best,
            parameters=sum(p.numel() for p in own),
            parameter_bytes=sum(p.numel() * p.element_size() for p in own),
            inputs=tuple(names[i] for i in stage_io(stages[k], True).inputs),
            parts=arrangement.splits[k] if arrangement.splits else (),
        )
        rows.append(row)
        cut = found[end - 1].cut
        if k < len(ends) - 1 and cut is not None:
            boundaries.append(_boundary(k + 1, cut, _aux_plan(arrangement, k, rows[k])))
    return Plan(
        model=type(captured._lp.model).__name__,
        K=best.K,
        method=best.method,
        cost=costs.cost,
        device=costs.device,
        batch=batch,
        batch_free=free,
        aux_budget=options.aux.budget if options.aux else 0.0,
        aux=options.aux.form if arrangement.made and options.aux and not options.traits.heads else "",
        aux_init=options.aux.init if arrangement.made and options.aux else "",
        width=width,
        units=costs.units,
        stages=tuple(rows),
        boundaries=tuple(boundaries),
        step=step,
        lower_bound=lower_bound,
        ideal=best.ideal,
        serial=costs.total + costs.loss,
        gate=checked,
        tied=tied_parameters(captured, cuts_of(found, best)),
        part=costs.part,
        aux_dtype=options.aux.dtype if arrangement.made and options.aux and not options.traits.heads else "",
        notes=(*captured._lp.notes, *costs.notes, *_aux_notes(arrangement), *about_samples),
        recipe=options.recipe,
        micro=chosen,
        batch_norm=facts.norm,
        as_published=options.as_published,
        exact=options.exact,
        ranks=best.ranks,
    )


def stage_row(
    k: int,
    units: Sequence[UnitCost],
    split: Partition,
    *,
    parameters: int | None = None,
    parameter_bytes: int | None = None,
    inputs: tuple[str, ...] = (),
    parts: tuple[float, ...] = (),
) -> StagePlan:
    """Stage k of a split. Without stage modules its parameters are the sum over its units."""
    ends = [0, *split.cuts, len(units)]
    part = units[ends[k] : ends[k + 1]]
    return StagePlan(
        index=k,
        first=ends[k],
        last=ends[k + 1] - 1,
        forward=sum(u.forward for u in part),
        backward=sum(u.backward for u in part),
        parameters=sum(u.parameters for u in part) if parameters is None else parameters,
        parameter_bytes=sum(u.parameter_bytes for u in part) if parameter_bytes is None else parameter_bytes,
        saved_bytes=sum(u.saved_bytes for u in part),
        memory_bytes=int(split.memory[k]),
        arrival=split.arrivals[k],
        finish=split.finish[k],
        work=split.work[k],
        inputs=inputs,
        parts=parts,
    )


def with_bubble(split: Partition, bubble: float, least: float, sent: float = 0.0) -> tuple[float, float]:
    """The step and its lower bound, where the slowest rank waits for the share `bubble` of all other work and messages.

    (1 - bubble) max work + bubble Σ work: the sum of all in `bp`, (M + K - 1)/M of a stage in a pipeline of M
    micro-batches over K equal stages. least: the least sum of all work. sent: ms of all messages of a step.
    """
    step = (1 - bubble) * split.step + bubble * (sum(split.work) + sent)
    return step, min(step, (1 - bubble) * split.lower_bound + bubble * least)


def predicted(best: Partition, costs: Profile, bubble: float, options: Options) -> tuple[float, float]:
    link, fastest = options.link, max((options.speeds or [1.0])[: best.K])
    sent = 2 * ((best.K - 1) * link.latency_ms + best.crossing / link.bytes_per_ms) if link else 0.0
    return with_bubble(best, bubble, (costs.total + costs.loss) / fastest, sent)


def _aux_notes(arrangement: Arrangement) -> tuple[str, ...]:
    records = [m.aux.record for m in arrangement.made]
    return tuple(f"AuxNet {k} is of kind {r.kind!r}: {r.note}" for k, r in enumerate(records, 1) if r.note)


def _boundary(index: int, cut: Cut, aux: AuxPlan | None) -> BoundaryPlan:
    return BoundaryPlan(
        index, cut.position, cut.eval_position, cut.after, cut.path, cut.source, cut.values, cut.specs, aux
    )


def _aux_plan(arrangement: Arrangement, k: int, stage: StagePlan) -> AuxPlan | None:
    if not arrangement.made:
        return None
    made = arrangement.made[k]
    record, parameters = made.aux.record, list(made.aux.parameters())
    return AuxPlan(
        kind=record.kind,
        init=record.init,
        rank=arrangement.best.aux_ranks[k],
        forward=made.forward * stage.forward,
        backward=made.backward * stage.backward,
        share=made.total,
        budget=made.budget,
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        kept=record.kept,
        dropped=record.dropped,
        thinned=record.thinned,
        zeroed=record.zeroed,
        violation=arrangement.violations[k] if arrangement.violations else None,
        made=record.made,
    )


def tied_parameters(captured: Captured, chosen: list[Cut]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Parameters that several stages use, with those stages."""
    model = captured._lp.model
    live = liveness(captured._lp_graphs[True], model)
    ends = [c.position for c in chosen]
    found = []
    for name, steps in state_uses(live, model).items():
        stages = tuple(sorted({sum(step > end for end in ends) for step in steps}))
        if len(stages) > 1 and name in live.parameters:
            found.append((name, stages))
    return tuple(found)
