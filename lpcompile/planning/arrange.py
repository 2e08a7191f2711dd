"""From costs to stages with their AuxNets or heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lpcompile.core.cost import Profile
from lpcompile.core.method import Method
from lpcompile.core.plan import Plan
from lpcompile.core.system.progress import within
from lpcompile.errors import PlanError
from lpcompile.passes.auxnet.measure import effort_for
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.explain import has_meta
from lpcompile.passes.graph.batch import batch_size, resized
from lpcompile.passes.graph.untouched import untouched
from lpcompile.passes.partition.evaluate import Partition
from lpcompile.passes.profile.profile import cache_directory, cache_key
from lpcompile.passes.profile.split_backward_cost import BackwardShares, split_shares
from lpcompile.passes.split.cuts import Cut
from lpcompile.passes.split.split import Stage, split
from lpcompile.passes.split.units import Unit
from lpcompile.planning.auxiliary.auxnets import CostedNet, NodeCosts, make_auxnets, node_costs, start, violations
from lpcompile.planning.auxiliary.fit import fit_auxnets
from lpcompile.planning.auxiliary.heads import make_heads
from lpcompile.planning.options import Options
from lpcompile.planning.partition import auto_stages, by_stage, evaluate, partition, slowed
from lpcompile.runtime.methods import get_method

UNCHAINED = "pipedream"  # a method whose step is the longest stage: its splits are balanced without AuxNets
MAX_ROUNDS = 3  # rounds of splitting by the real cost of the AuxNets
NEXT_ROUND_STEP = 0.97  # another round must promise a step of at most this share
MEASURED_ROUND_STEP = 0.99  # the same for a round in which AuxNets are measured again


@dataclass(frozen=True)
class Arrangement:
    """A split, its stages, and their AuxNets or heads."""

    best: Partition
    stages: tuple[Stage, ...]
    made: tuple[CostedNet, ...]
    violations: tuple[float, ...] = ()
    splits: tuple[BackwardShares, ...] = ()  # of each stage's backward, where a method runs it in two parts


def follow_plan(captured: Captured, found: list[Unit], costs: Profile, plan: Plan, options: Options) -> Arrangement:
    """The stages and AuxNets of an existing plan. The model's weights are not changed."""
    if [u.name for u in plan.units] != [u.name for u in found]:
        raise PlanError(
            f"the plan is for another model: it has {len(plan.units)} units from {plan.units[0].name} to "
            f"{plan.units[-1].name}, this model has {len(found)} from {found[0].name} to {found[-1].name}; "
            f"make a new plan"
        )
    shares = [b.aux.share for b in plan.boundaries if b.aux is not None]
    ranks = [b.aux_rank for b in plan.boundaries]
    none = [0.0] * (plan.K - 1)  # a method without AuxNets
    best = evaluate(costs, [s.last + 1 for s in plan.stages[:-1]], ranks, **terms_of(options, shares or none))
    stages = _split(captured, found, best)
    made: list[CostedNet] = []
    if shares and options.aux is not None:
        budgets = [b.aux.budget for b in plan.boundaries if b.aux is not None]
        prices = node_costs(captured, found, costs)
        if plan.heads:
            made = make_heads(captured, stages, plan.boundaries, budgets, options.aux.init)
        else:
            made = make_auxnets(captured._lp.model, stages, prices, options.aux, budgets=budgets)
        for m, boundary in zip(made, plan.boundaries, strict=True):
            kinds = {m.aux.record.kind, boundary.aux.kind} if boundary.aux is not None else set()
            if len(kinds) > 1 and kinds & {"user", "cut"}:
                assert boundary.aux is not None
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
    return Arrangement(best, stages, tuple(made))


def _without_zeroing(init: str) -> str:
    """A plan may be followed by a trained model: its weights are copied, never set to zero."""
    return "copy" if init == "consistent" else init


def plan_program(
    captured: Captured, found: list[Unit], costs: Profile, tensors: list[torch.Tensor], options: Options
) -> Arrangement:
    """Split by the budget, derive the AuxNets, and split again by what they really cost, until the split stays."""
    best, model = plan_stages(costs, options), captured._lp.model
    if options.aux is None or best.K == 1 or not options.traits.has_aux:
        return _of_stages_alone(captured, found, costs, best, tensors, options)
    prices = node_costs(captured, found, costs)
    tried: list[Arrangement] = []
    for _ in range(MAX_ROUNDS):
        stages = _split(captured, found, best)
        if options.traits.heads:
            chosen = cuts_of(found, best)
            made = make_heads(captured, stages, chosen, [options.aux.budget] * len(chosen), options.aux.init)
        else:
            made = make_auxnets(model, stages, prices, options.aux)
        shares = [m.total for m in made]
        again = _split_for(costs, best.world, shares, options)
        real = _hosted(costs, best, terms_of(options, shares), options.placement)
        real = replace(real, lower_bound=min(real.step, again.lower_bound))
        settled = again.cuts == best.cuts and (options.balance, options.placement) == ("work", "best")
        tried.append(
            Arrangement(again if settled else real, stages, tuple(made))
        )  # `again` has hosts of its own choice
        if again.cuts == best.cuts or again.step > real.step * NEXT_ROUND_STEP:
            break
        best = again
    arrangement = min(tried, key=lambda one: one.best.step)
    if options.cost == "measured" and not options.traits.heads:
        return _measured(captured, found, costs, arrangement, prices, _as_measured(costs, tensors), options)
    return arrangement


def _of_stages_alone(
    captured: Captured,
    found: list[Unit],
    costs: Profile,
    best: Partition,
    tensors: list[torch.Tensor],
    options: Options,
) -> Arrangement:
    """The stages of a method without AuxNets. A backward in two parts takes longer than an undivided one, on all ranks
    but the first: it is measured on the stages of `best`, and the model is split again by what ranks then really do."""
    stages = _split(captured, found, best)
    if not options.traits.splits_backward or options.cost != "measured" or best.K == 1 or options.compile:
        return Arrangement(best, stages, ())
    options.progress(0.6, "measuring backward in two parts")
    cached = _split_file(captured, found, best, tensors, options) if options.cache else None
    repeats = effort_for(2 * costs.step, seconds=options.calibration_seconds).repeats
    with untouched(captured._lp.model, captured._lp.written):
        splits = split_shares(stages, _as_measured(costs, tensors), repeats, cached)
    speeds = slowed(costs, best.cuts, splits, by_stage(options.speeds, best.ranks))
    again = _split_for(costs, best.world, 0.0, replace(options, speeds=speeds))
    return Arrangement(again, stages if again.cuts == best.cuts else _split(captured, found, again), (), splits=splits)


def _split_file(
    captured: Captured, found: list[Unit], best: Partition, tensors: list[torch.Tensor], options: Options
) -> Path:
    """Where the cache keeps the shares of split backwards, for these stages."""
    name = f"{cache_key(captured, found, tensors, options.threads, 1.0)}-{'-'.join(map(str, best.cuts))}"
    return cache_directory() / f"{name}-split.json"


def _measured(
    captured: Captured,
    found: list[Unit],
    costs: Profile,
    arrangement: Arrangement,
    prices: NodeCosts,
    tensors: list[torch.Tensor],
    options: Options,
) -> Arrangement:
    """AuxNets sized by measured time, and the best split for the measured cost."""
    assert options.aux is not None
    model, effort = (
        captured._lp.model,
        effort_for(costs.step, within(options.progress, 0.6, 0.95), options.calibration_seconds),
    )
    tried: list[Arrangement] = []
    split, stages = arrangement.best, arrangement.stages
    for _ in range(1 if effort.slow else 2):

        def price(made: Sequence[CostedNet], split: Partition = split) -> Partition:
            return _hosted(costs, split, terms_of(options, _run(made, split, options.traits, costs)), options.placement)

        fitted, real = fit_auxnets(model, stages, prices, options.aux, tensors, effort, price)
        again = _split_for(costs, split.world, _run(fitted, split, options.traits, costs), options)
        bound = min(real.step, split.lower_bound, again.lower_bound)
        tried.append(Arrangement(replace(real, lower_bound=bound), stages, fitted))
        if again.cuts == split.cuts or again.step > real.step * MEASURED_ROUND_STEP:
            break
        split, stages = again, _split(captured, found, again)
    return min(tried, key=lambda one: one.best.step)


def _as_measured(costs: Profile, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Inputs with as many samples as the units were measured with."""
    return resized(tensors, costs.samples) if costs.samples else tensors


def _run(made: Sequence[CostedNet], best: Partition, method: Method, costs: Profile) -> list[float]:
    """Cost of each AuxNet as a share of its stage. Some methods run its forward twice where batches are not cut."""
    shares = [m.total for m in made]
    if not method.reruns_auxnets or costs.part < 1:
        return shares
    ends = [0, *best.cuts]
    for k, m in enumerate(made):
        forward = sum(u.forward for u in costs.units[ends[k] : ends[k + 1]]) / (best.costs[k] or 1.0)
        shares[k] += m.forward * forward
    return shares


def begin(captured: Captured, arrangement: Arrangement, tensors: list[torch.Tensor], options: Options) -> Arrangement:
    """Set the AuxNets' first weights (and the model's zero branches for a consistent start); measure the violation."""
    if options.aux is None or not arrangement.made or options.traits.heads:
        return arrangement
    start(captured._lp.model, arrangement.made, options.aux)
    return replace(arrangement, violations=_violations(captured, arrangement, tensors, options))


def _split_for(costs: Profile, K: int, shares: Sequence[float] | float, options: Options) -> Partition:
    """The best split with AuxNets of these shares; or the best without them, priced with them."""
    given = {**options.planner(), "aux_budget": shares}
    if options.balance == "work":
        return partition(costs, K, **given)
    bare = partition(costs, K, **{**given, "method": UNCHAINED, "aux_budget": 0.0})
    each = list(shares) if isinstance(shares, Sequence) else [shares] * (K - 1)
    return evaluate(costs, bare.cuts, None, **terms_of(options, each))


def _hosted(costs: Profile, best: Partition, terms: dict[str, Any], placement: str = "best") -> Partition:
    """The same split with the better host rank for each AuxNet, below or above its boundary."""
    if placement == "below":
        return evaluate(costs, best.cuts, list(range(best.K - 1)), **terms)
    if terms["aux"] == "tied" or get_method(best.method).heads:
        return evaluate(costs, best.cuts, best.aux_ranks, **terms)
    starts = [best.aux_ranks, *([range(1, best.K)] if get_method(best.method).has_aux else [])]
    return min((_moved(costs, best.cuts, list(ranks), terms) for ranks in starts), key=lambda found: found.step)


def _moved(costs: Profile, cuts: Sequence[int], ranks: list[int], terms: dict[str, Any]) -> Partition:
    """From these hosts on, each AuxNet in turn on the other side of its boundary where that is faster."""
    best = evaluate(costs, cuts, ranks, **terms)
    for k in range(best.K - 1):
        ranks = list(best.aux_ranks)
        ranks[k] = 2 * k + 1 - ranks[k]
        other = evaluate(costs, cuts, ranks, **terms)
        best = other if other.step < best.step else best
    return best


def terms_of(options: Options, shares: list[float] | float) -> dict[str, Any]:
    """Keyword arguments of `evaluate`."""
    terms = {n: v for n, v in options.planner().items() if n not in ("memory_limit", "pins")}
    return {**terms, "aux_budget": shares or 0.0}  # methods without AuxNets have none


def _split(captured: Captured, found: list[Unit], best: Partition) -> tuple[Stage, ...]:
    return split(captured, cuts_of(found, best))


def cuts_of(found: list[Unit], best: Partition) -> list[Cut]:
    """The cuts of a split."""
    return [c for c in (found[b - 1].cut for b in best.cuts) if c is not None]


def _violations(
    captured: Captured, arrangement: Arrangement, tensors: list[torch.Tensor], options: Options
) -> tuple[float, ...]:
    if options.aux is None or options.aux.init != "consistent" or has_meta(captured._lp.model):
        return ()
    inputs = small_batch(captured, tensors)
    return tuple(violations(captured._lp.model, arrangement.stages, [m.aux for m in arrangement.made], inputs))


def small_batch(captured: Captured, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Inputs for a check: two samples, with small images if the graph is the same for them."""
    inputs = captured._lp.small_inputs or tensors
    batch = batch_size(inputs)
    if captured._lp.batch_free and batch is not None and batch > 2:
        inputs = resized(inputs, 2)
    return inputs


def plan_stages(costs: Profile, options: Options) -> Partition:
    if options.K == "auto":
        return auto_stages(costs, **options.planner())
    return _split_for(costs, int(options.K), options.planner()["aux_budget"], options)
