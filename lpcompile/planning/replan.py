"""A plan for another K or another method, from a plan: for sweeps over K and comparisons.

Nothing is captured, measured or derived: units and their costs are the plan's, and every AuxNet costs the average share
of the plan's AuxNets. A saved plan is enough.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import pairwise

from lpcompile.core.cost import Profile
from lpcompile.core.method import BatchFacts
from lpcompile.core.micro_batches import bubble_of
from lpcompile.core.plan import AuxPlan, BoundaryPlan, Plan, StagePlan
from lpcompile.passes.partition.evaluate import Link, Partition
from lpcompile.passes.profile.split_backward_cost import FIRST_STAGE_SHARES, BackwardShares
from lpcompile.planning.choice import choice
from lpcompile.planning.partition import evaluate, partition, slowed
from lpcompile.planning.plan_rows import stage_row, with_bubble
from lpcompile.runtime.methods import get_method


def profile_of(plan: Plan) -> Profile:
    loss = max(0.0, plan.serial - sum(u.forward + u.backward for u in plan.units))
    return Profile(plan.units, plan.cost, plan.device, loss=loss)


def aux_share(plan: Plan) -> float:
    """Average cost of an AuxNet as a share of its stage; the default budget if the plan has no AuxNets."""
    shares = [b.aux.share for b in plan.boundaries if b.aux is not None]
    return sum(shares) / len(shares) if shares else plan.aux_budget or 0.1


def replan(plan: Plan, K: int, method: str | None = None) -> Plan:
    """The best split for a method on K ranks; the plan itself if it is that already."""
    method = method or plan.method
    if (K, method) == (plan.world, plan.method):
        return plan
    costs, shares = profile_of(plan), min(1.0, aux_share(plan))
    split = partition(costs, K, method=method, aux_budget=shares, aux=_form(plan))
    if parts := shares_like(plan, split.K, method):
        speeds = slowed(costs, split.cuts, parts)
        split = partition(costs, K, method=method, aux_budget=shares, aux=_form(plan), speeds=speeds)
    return from_split(plan, split)


def cuts_over(plan: Plan, link: Link | None) -> tuple[int, ...]:
    """Where the same method would cut the plan's units for this link between its ranks."""
    shares = [b.aux.share if b.aux is not None else 0.0 for b in plan.boundaries]
    costs, parts = profile_of(plan), shares_like(plan, plan.K, plan.method)
    speeds = slowed(costs, [s.last + 1 for s in plan.stages[:-1]], parts) if parts else None
    found = partition(
        costs, plan.world, method=plan.method, aux_budget=shares, aux=_form(plan), link=link, speeds=speeds
    )
    return found.cuts


def with_method(plan: Plan, method: str) -> Plan:
    """The same stages for another method."""
    if method == plan.method:
        return plan
    hosts, shares = [-1] * (plan.K - 1), [0.0] * (plan.K - 1)
    if get_method(method).has_aux:
        hosts = [b.aux_rank if b.aux_rank >= 0 else b.index - 1 for b in plan.boundaries]
        shares = [b.aux.share if b.aux is not None else aux_share(plan) for b in plan.boundaries]
    cuts = [s.last + 1 for s in plan.stages[:-1]]
    found = evaluate(profile_of(plan), cuts, hosts, method=method, aux_budget=shares or 0.0, aux=_form(plan))
    return from_split(plan, found, shares)


def moved(plan: Plan, boundary: int, by: int) -> Plan | None:
    """The plan with one cut moved by some units; None if a stage would be empty."""
    cuts = [s.last + 1 for s in plan.stages[:-1]]
    cuts[boundary - 1] += by
    around = [0, *cuts, len(plan.units)]
    if any(low >= high for low, high in pairwise(around)):
        return None
    hosts = [b.aux_rank for b in plan.boundaries]
    shares = [b.aux.share if b.aux is not None else 0.0 for b in plan.boundaries]
    costs, parts = profile_of(plan), shares_like(plan, plan.K, plan.method)
    speeds = slowed(costs, cuts, parts) if parts else None
    found = evaluate(costs, cuts, hosts, method=plan.method, aux_budget=shares, aux=_form(plan), speeds=speeds)
    return from_split(plan, found, shares)


def shares_like(plan: Plan, K: int, method: str) -> tuple[BackwardShares, ...]:
    """What K stages lose to backwards in two parts, as the plan's own do on average; empty if none were measured."""
    known = [(s.parts[0], s.parts[1]) for s in plan.stages if s.parts]
    if not get_method(method).splits_backward or len(known) < 2:
        return ()
    if len(known) == K:
        return tuple(known)
    first, second = (statistics.mean(part) for part in zip(*known[1:], strict=True))
    return (FIRST_STAGE_SHARES, *[(first, second)] * (K - 1))


def _form(plan: Plan) -> str:
    return plan.aux if plan.aux in ("derived", "tied", "recursive") else "derived"


def from_split(plan: Plan, split: Partition, shares: list[float] | None = None) -> Plan:
    """A plan with these cuts; its boundaries have sizes (their units' outputs) and no tensors."""
    shares = shares or [aux_share(plan)] * (split.K - 1)
    parts = shares_like(plan, split.K, split.method)
    stages = [stage_row(k, plan.units, split, parts=parts[k] if parts else ()) for k in range(split.K)]
    boundaries = [
        _boundary(s.index + 1, plan.units[s.last].name, s, split.aux_ranks[s.index], shares[s.index])
        for s in stages[:-1]
    ]
    method = get_method(split.method)
    facts = BatchFacts(split.world, plan.batch, plan.batch_free, norm=plan.batch_norm)
    micro = plan.micro if (split.world, split.method) == (plan.world, plan.method) else 0
    step, bound = with_bubble(split, bubble_of(method, facts, micro), plan.serial)
    found = replace(
        plan,
        K=split.K,
        method=split.method,
        aux=plan.aux or "derived" if method.aux == "auxnet" and split.K > 1 else "",
        stages=tuple(stages),
        boundaries=tuple(boundaries),
        step=step,
        lower_bound=bound,
        ideal=split.ideal,
        tied=plan.tied if split.K > 1 else (),
        recipe=plan.recipe if split.method == plan.method else "",
        micro=micro,
        ranks=split.ranks,
    )
    return replace(found, choice=choice(found))


def _boundary(index: int, after: str, below: StagePlan, host: int, share: float) -> BoundaryPlan:
    aux = None
    if host >= 0:
        forward, backward = share * below.forward, share * below.backward
        count, nbytes = int(share * below.parameters), int(share * below.parameter_bytes)
        aux = AuxPlan("derived", "", host, forward, backward, share, share, count, nbytes, (), (), (), ())
    return BoundaryPlan(index, -1, -1, after, after, "", (), (), aux)
