"""A plan's model again, split for another K or another method: what sweeps over K and comparisons are made of.

Nothing is captured, measured or derived for it: units and their costs are the plan's, and an AuxNet is taken to cost
the share of its stage that the plan's AuxNets do. So a saved plan is enough.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from lpcompile.core.cost import Profile
from lpcompile.core.pipeline_order import exposed
from lpcompile.core.plan import AuxPlan, BoundaryPlan, Plan, StagePlan
from lpcompile.passes.partition.partition import Partition, evaluate, partition


def profile_of(plan: Plan) -> Profile:
    loss = max(0.0, plan.serial - sum(u.forward + u.backward for u in plan.units))
    return Profile(plan.units, plan.cost, plan.device, loss=loss)


def aux_share(plan: Plan) -> float:
    """What an AuxNet costs of its stage, on average; the budget where the plan has none."""
    shares = [b.aux.share for b in plan.boundaries if b.aux is not None]
    return sum(shares) / len(shares) if shares else plan.aux_budget or 0.1


def replan(plan: Plan, K: int, method: str | None = None) -> Plan:
    """The best split into K stages for a method; the plan itself where it is that already."""
    method = method or plan.method
    if (K, method) == (plan.K, plan.method):
        return plan
    split = partition(profile_of(plan), K, method=method, aux_budget=min(1.0, aux_share(plan)), aux=_form(plan))
    return from_split(plan, split)


def moved(plan: Plan, boundary: int, by: int) -> Plan | None:
    """The plan with one cut moved by some units; None where a stage would have none left."""
    cuts = [s.last + 1 for s in plan.stages[:-1]]
    cuts[boundary - 1] += by
    around = [0, *cuts, len(plan.units)]
    if any(low >= high for low, high in pairwise(around)):
        return None
    hosts = [b.aux_rank for b in plan.boundaries]
    shares = [b.aux.share if b.aux is not None else 0.0 for b in plan.boundaries]
    found = evaluate(profile_of(plan), cuts, hosts, method=plan.method, aux_budget=shares, aux=_form(plan))
    return from_split(plan, found, shares)


def _form(plan: Plan) -> str:
    return plan.aux if plan.aux in ("derived", "tied", "recursive") else "derived"


def from_split(plan: Plan, split: Partition, shares: list[float] | None = None) -> Plan:
    """A plan with these cuts; its boundaries have sizes (their units' outputs) and no tensors."""
    ends = [*split.cuts, len(plan.units)]
    shares = shares or [aux_share(plan)] * (split.K - 1)
    stages, boundaries = [], []
    for k, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        part = plan.units[first:end]
        stages.append(
            StagePlan(
                k,
                first,
                end - 1,
                sum(u.forward for u in part),
                sum(u.backward for u in part),
                sum(u.parameters for u in part),
                sum(u.parameter_bytes for u in part),
                sum(u.saved_bytes for u in part),
                int(split.memory[k]),
                split.arrivals[k],
                split.finish[k],
                split.work[k],
                (),
            )
        )
        if k < split.K - 1:
            boundaries.append(_boundary(k + 1, part[-1].name, stages[k], split.aux_ranks[k], shares[k]))
    waits = exposed(split.method, split.K, plan.batch, plan.batch_free)
    step = (1 - waits) * split.step + waits * sum(split.work)
    bound = min(step, (1 - waits) * split.lower_bound + waits * plan.serial)
    return replace(
        plan,
        K=split.K,
        method=split.method,
        aux=plan.aux or "derived" if split.aux_ranks and split.aux_ranks[0] >= 0 else "",
        stages=tuple(stages),
        boundaries=tuple(boundaries),
        step=step,
        lower_bound=bound,
        ideal=split.ideal,
        tied=plan.tied if split.K > 1 else (),
    )


def _boundary(index: int, after: str, below: StagePlan, host: int, share: float) -> BoundaryPlan:
    aux = None
    if host >= 0:
        forward, backward = share * below.forward, share * below.backward
        count, nbytes = int(share * below.parameters), int(share * below.parameter_bytes)
        aux = AuxPlan("derived", "", host, forward, backward, share, share, count, nbytes, (), (), (), ())
    return BoundaryPlan(index, -1, -1, after, after, "", (), (), aux)
