"""From costs to stages, AuxNets and the Plan that describes them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lpcompile.core.cost import Profile
from lpcompile.core.pipeline_order import exposed
from lpcompile.core.plan import AuxPlan, BoundaryPlan, Plan, StagePlan
from lpcompile.core.progress import within
from lpcompile.errors import PlanError
from lpcompile.passes.auxnet.measure import effort_for
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.batch import batch_size, resized
from lpcompile.passes.graph.liveness import liveness
from lpcompile.passes.partition.options import HEAD_METHODS, PLAIN_METHODS
from lpcompile.passes.partition.partition import Partition, auto_stages, evaluate, partition
from lpcompile.passes.profile.split_backward_cost import Shares, split_shares
from lpcompile.passes.split.cuts import Cut, state_uses
from lpcompile.passes.split.split import Stage, split, stage_io
from lpcompile.passes.split.units import Unit
from lpcompile.planning.auxnets import Costs, Made, make_auxnets, node_costs, start, violations
from lpcompile.planning.fit import fit_auxnets
from lpcompile.planning.heads import make_heads
from lpcompile.planning.options import Options
from lpcompile.program import on_meta

ROUNDS = 3  # of splitting by what the AuxNets really cost
WORTH_IT = 0.97  # another round must promise to shorten the step to this share
WORTH_MEASURING = 0.99  # and one in which AuxNets are measured again, to this


@dataclass(frozen=True)
class Layout:
    """A split, its stages and their AuxNets, or heads."""

    best: Partition
    stages: tuple[Stage, ...]
    made: tuple[Made, ...]
    violations: tuple[float, ...] = ()
    splits: tuple[Shares, ...] = ()  # of each stage's backward, where a method runs it in two parts


def follow_plan(captured: Captured, found: list[Unit], costs: Profile, plan: Plan, options: Options) -> Layout:
    """The stages and AuxNets of a plan that was made before. The model's weights are left as they are."""
    if [u.name for u in plan.units] != [u.name for u in found]:
        raise PlanError(
            f"the plan is for another model: it has {len(plan.units)} units from {plan.units[0].name} to "
            f"{plan.units[-1].name}, this model has {len(found)} from {found[0].name} to {found[-1].name}; "
            f"make a new plan"
        )
    shares = [b.aux.share for b in plan.boundaries if b.aux is not None]
    ranks = [b.aux_rank for b in plan.boundaries]
    none = [0.0] * (plan.K - 1)  # a method without AuxNets
    best = evaluate(costs, [s.last + 1 for s in plan.stages[:-1]], ranks, **_terms(options, shares or none))
    stages = _split(captured, found, best)
    made: list[Made] = []
    if shares and options.aux is not None:
        budgets = [b.aux.budget for b in plan.boundaries if b.aux is not None]
        prices = node_costs(captured, found, costs)
        if plan.heads:
            made = make_heads(captured, stages, plan.boundaries, budgets, options.aux.init)
        else:
            made = make_auxnets(captured._lp.model, stages, prices, options.aux, budgets=budgets)
        for m, boundary in zip(made, plan.boundaries, strict=True):
            if boundary.aux is not None and (m.aux.record.kind == "user") != (boundary.aux.kind == "user"):
                raise PlanError(
                    f"the AuxNet of boundary {boundary.index} is {boundary.aux.kind} in the plan and "
                    f"{m.aux.record.kind} here: pass the same auxnet= as when the plan was made"
                )
            if boundary.aux is not None and m.aux.record.kept != boundary.aux.kept:
                raise PlanError(
                    f"the AuxNet of boundary {boundary.index} comes out with blocks {m.aux.record.kept}, the plan has "
                    f"{boundary.aux.kept}: the plan was made by another version; make a new plan"
                )
        if not plan.heads:
            start(captured._lp.model, made, replace(options.aux, init=_without_zeroing(options.aux.init)))
    return Layout(best, stages, tuple(made))


def _without_zeroing(init: str) -> str:
    """Following a plan may be to go on with a trained model: its weights are copied, never set to zero."""
    return "copy" if init == "consistent" else init


def plan_program(
    captured: Captured, found: list[Unit], costs: Profile, tensors: list[torch.Tensor], options: Options
) -> Layout:
    """Split by the budget, derive the AuxNets, and split again by what they really cost, until the split stays."""
    best, model = plan_stages(costs, options), captured._lp.model
    if options.aux is None or best.K == 1 or options.method in PLAIN_METHODS:
        stages = _split(captured, found, best)
        apart = options.method == "zb" and options.cost == "measured" and best.K > 1
        options.progress(0.6, "measuring backward in two parts" if apart else "")
        few, repeats = _as_measured(costs, tensors), effort_for(2 * costs.step).repeats
        return Layout(best, stages, (), splits=split_shares(stages, few, repeats) if apart else ())
    prices = node_costs(captured, found, costs)
    layouts: list[Layout] = []
    for _ in range(ROUNDS):
        stages = _split(captured, found, best)
        if options.method in HEAD_METHODS:
            chosen = _cuts(found, best)
            made = make_heads(captured, stages, chosen, [options.aux.budget] * len(chosen), options.aux.init)
        else:
            made = make_auxnets(model, stages, prices, options.aux)
        shares = [m.total for m in made]
        again = partition(costs, best.K, **{**options.planner(), "aux_budget": shares})
        real = _hosted(costs, best, _terms(options, shares))
        real = replace(real, lower_bound=min(real.step, again.lower_bound))
        layouts.append(Layout(real if again.cuts != best.cuts else again, stages, tuple(made)))
        if again.cuts == best.cuts or again.step > real.step * WORTH_IT:
            break
        best = again
    layout = min(layouts, key=lambda one: one.best.step)
    if options.cost == "measured" and options.method not in HEAD_METHODS:
        return _measured(captured, found, costs, layout, prices, _as_measured(costs, tensors), options)
    return layout


def _measured(
    captured: Captured,
    found: list[Unit],
    costs: Profile,
    layout: Layout,
    prices: Costs,
    tensors: list[torch.Tensor],
    options: Options,
) -> Layout:
    """AuxNets by measured time; and, where they take another time than was thought, the split that is best with it."""
    assert options.aux is not None
    model, effort = captured._lp.model, effort_for(costs.step, within(options.progress, 0.6, 0.95))
    tried: list[Layout] = []
    split, stages = layout.best, layout.stages
    for _ in range(1 if effort.slow else 2):

        def price(made: Sequence[Made], split: Partition = split) -> Partition:
            return _hosted(costs, split, _terms(options, _run(made, split, options.method, costs)))

        fitted, real = fit_auxnets(model, stages, prices, options.aux, tensors, effort, price)
        again = partition(
            costs, split.K, **{**options.planner(), "aux_budget": _run(fitted, split, options.method, costs)}
        )
        bound = min(real.step, split.lower_bound, again.lower_bound)
        tried.append(Layout(replace(real, lower_bound=bound), stages, fitted))
        if again.cuts == split.cuts or again.step > real.step * WORTH_MEASURING:
            break
        split, stages = again, _split(captured, found, again)
    return min(tried, key=lambda one: one.best.step)


def _as_measured(costs: Profile, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """As many samples as the units were measured with."""
    return resized(tensors, costs.samples) if costs.samples else tensors


def _run(made: Sequence[Made], best: Partition, method: str, costs: Profile) -> list[float]:
    """What AuxNets take of their stages' time; `multiplier` runs their forwards twice where batches are not cut."""
    shares = [m.total for m in made]
    if method != "multiplier" or costs.part < 1:
        return shares
    ends = [0, *best.cuts]
    for k, m in enumerate(made):
        forward = sum(u.forward for u in costs.units[ends[k] : ends[k + 1]]) / (best.costs[k] or 1.0)
        shares[k] += m.forward * forward
    return shares


def begin(captured: Captured, layout: Layout, tensors: list[torch.Tensor], options: Options) -> Layout:
    """Give the AuxNets their first weights (and, for a consistent start, the model's branches their zeros), and look at
    how far λ is from X."""
    if options.aux is None or not layout.made or options.method in HEAD_METHODS:
        return layout
    start(captured._lp.model, layout.made, options.aux)
    differences = _violations(captured, layout, tensors, options)
    for k, violation in enumerate(differences):
        if violation > 0:
            why = "an adapter cannot start there" if layout.made[k].aux.record.kind == "adapter" else "please report it"
            warnings.warn(
                f"the start is not consistent at boundary {k + 1}: λ and X differ by {violation:.3g} of the square of "
                f"X ({why}); train with a warm-up",
                stacklevel=7,
            )
    return replace(layout, violations=differences)


def _hosted(costs: Profile, best: Partition, terms: dict[str, Any]) -> Partition:
    """The same split with each AuxNet on the rank, of the two beside its boundary, that makes the step shortest."""
    best = evaluate(costs, best.cuts, best.aux_ranks, **terms)
    for k in range(best.K - 1) if terms["aux"] != "tied" and best.method not in HEAD_METHODS else ():
        ranks = list(best.aux_ranks)
        ranks[k] = 2 * k + 1 - ranks[k]
        other = evaluate(costs, best.cuts, ranks, **terms)
        best = other if other.step < best.step else best
    return best


def _terms(options: Options, shares: list[float]) -> dict[str, Any]:
    terms = {n: v for n, v in options.planner().items() if n not in ("memory_limit", "pins")}
    return {**terms, "aux_budget": shares or 0.0}  # methods without AuxNets have none


def _split(captured: Captured, found: list[Unit], best: Partition) -> tuple[Stage, ...]:
    return split(captured, _cuts(found, best))


def _cuts(found: list[Unit], best: Partition) -> list[Cut]:
    return [c for c in (found[b - 1].cut for b in best.cuts) if c is not None]


def _violations(captured: Captured, layout: Layout, tensors: list[torch.Tensor], options: Options) -> tuple[float, ...]:
    if options.aux is None or options.aux.init != "consistent" or on_meta(captured._lp.model):
        return ()
    inputs = small_batch(captured, tensors)
    return tuple(violations(captured._lp.model, layout.stages, [m.aux for m in layout.made], inputs))


def small_batch(captured: Captured, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Inputs for a check: two samples, and small images where the graph is the same for them."""
    inputs = captured._lp.small_inputs or tensors
    batch = batch_size(inputs)
    if captured._lp.batch_free and batch is not None and batch > 2:
        inputs = resized(inputs, 2)
    return inputs


def plan_stages(costs: Profile, options: Options) -> Partition:
    if options.K == "auto":
        return auto_stages(costs, **options.planner())
    return partition(costs, int(options.K), **options.planner())


def make_plan(
    captured: Captured,
    found: list[Unit],
    costs: Profile,
    layout: Layout,
    tensors: list[torch.Tensor],
    width: int,
    checked: str,
    options: Options,
) -> Plan:
    """Gather what the passes found into one frozen record."""
    best, stages = layout.best, layout.stages
    batch, free = batch_size(tensors), captured._lp.batch_free
    step, lower_bound = predicted(best, costs, exposed(best.method, best.K, batch, free), options)
    names = [name for name, _ in captured._lp.signature.inputs]
    ends = [*best.cuts, len(found)]
    rows, boundaries = [], []
    for k, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        part = costs.units[first:end]
        rows.append(
            StagePlan(
                index=k,
                first=first,
                last=end - 1,
                forward=sum(u.forward for u in part),
                backward=sum(u.backward for u in part),
                parameters=sum(p.numel() for p in stages[k].parameters()),
                parameter_bytes=sum(p.numel() * p.element_size() for p in stages[k].parameters()),
                saved_bytes=sum(u.saved_bytes for u in part),
                memory_bytes=int(best.memory[k]),
                arrival=best.arrivals[k],
                finish=best.finish[k],
                work=best.work[k],
                inputs=tuple(names[i] for i in stage_io(stages[k], True).inputs),
                parts=layout.splits[k] if layout.splits else (),
            )
        )
        cut = found[end - 1].cut
        if k < len(ends) - 1 and cut is not None:
            boundaries.append(_boundary(k + 1, cut, _aux_plan(layout, k, rows[k])))
    return Plan(
        model=type(captured._lp.model).__name__,
        K=best.K,
        method=best.method,
        cost=costs.cost,
        device=costs.device,
        batch=batch,
        batch_free=free,
        aux_budget=options.aux.budget if options.aux else 0.0,
        aux=options.aux.form if layout.made and options.aux and best.method not in HEAD_METHODS else "",
        aux_init=options.aux.init if layout.made and options.aux else "",
        width=width,
        units=costs.units,
        stages=tuple(rows),
        boundaries=tuple(boundaries),
        step=step,
        lower_bound=lower_bound,
        ideal=best.ideal,
        serial=costs.total + costs.loss,
        gate=checked,
        tied=tied_parameters(captured, _cuts(found, best)),
        part=costs.part,
        aux_dtype=options.aux.dtype if layout.made and options.aux and best.method not in HEAD_METHODS else "",
        notes=(*captured._lp.notes, *costs.notes),
    )


def predicted(best: Partition, costs: Profile, share: float, options: Options) -> tuple[float, float]:
    """The step and its bound, where the slowest rank waits for this share of what the others do and send.

    (1 - share) max work + share Σ work: the sum of all in `bp`, (M + K - 1)/M of a stage in a pipeline of M
    micro-batches over K equal stages.
    """
    link, fastest = options.link, max((options.speeds or [1.0])[: best.K])
    sent = 2 * ((best.K - 1) * link.latency_ms + best.crossing / link.bytes_per_ms) if link else 0.0
    least = (costs.total + costs.loss) / fastest
    step = (1 - share) * best.step + share * (sum(best.work) + sent)
    return step, min(step, (1 - share) * best.lower_bound + share * least)


def _boundary(index: int, cut: Cut, aux: AuxPlan | None) -> BoundaryPlan:
    return BoundaryPlan(
        index, cut.position, cut.eval_position, cut.after, cut.path, cut.source, cut.values, cut.specs, aux
    )


def _aux_plan(layout: Layout, k: int, stage: StagePlan) -> AuxPlan | None:
    if not layout.made:
        return None
    made = layout.made[k]
    record, parameters = made.aux.record, list(made.aux.parameters())
    return AuxPlan(
        kind=record.kind,
        init=record.init,
        rank=layout.best.aux_ranks[k],
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
        violation=layout.violations[k] if layout.violations else None,
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
