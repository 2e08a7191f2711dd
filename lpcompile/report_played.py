"""What the simulator adds to a report: ranks over time, and ρ over K."""

from __future__ import annotations

from lpcompile.charts import Lane
from lpcompile.compare_timeline import batch_of, kind_of
from lpcompile.compile import balance
from lpcompile.errors import LpError
from lpcompile.plan import Plan
from lpcompile.replan import replan
from lpcompile.report_data import Sweep
from lpcompile.simulate import Simulation, simulate

MOST = 16  # stages of a sweep
TOO_SHORT = 1 / 4000  # of what is drawn: less than half a pixel


def played(plan: Plan) -> Simulation | None:
    """The plan's own schedule on its own costs; None where the method has none for this plan."""
    try:
        return simulate(plan)
    except LpError:
        return None


def lanes(found: Simulation) -> list[Lane]:
    """The time in which every rank is known, from 0 on; mini-batches are numbered from the first one in it."""
    ranks = [[e for e in found.events if e.rank == rank] for rank in range(found.K)]
    if not all(ranks):
        return []
    begin, end = max(min(e.begin for e in rank) for rank in ranks), min(max(e.end for e in rank) for rank in ranks)
    least = (end - begin) * TOO_SHORT
    shown = [[e for e in rank if min(e.end, end) - max(e.begin, begin) > least] for rank in ranks]
    batches = {e: batch_of((e.name, e.rank, e.step, e.begin, e.end), found.micro) for rank in shown for e in rank}
    first = min(batches.values(), default=0)
    return [
        [
            {"name": e.name, "kind": kind_of(e.name), "batch": batches[e] - first + 1,
             "begin": max(e.begin, begin) - begin, "end": min(e.end, end) - begin}
            for e in rank
        ]
        for rank in shown
    ]  # fmt: skip


def sweep(plan: Plan) -> list[Sweep]:
    """ρ for K = 1 to about twice the plan's, of the same units at the same costs."""
    found, costs = [], [u.forward + u.backward for u in plan.units]
    for K in range(1, min(max(2 * plan.K, 8), MOST, len(plan.units)) + 1):
        try:
            other = replan(plan, K)
        except LpError:
            continue
        simulation = played(other)
        limit = min(float(K), plan.serial / (balance(costs, K) or 1.0))
        found.append(Sweep(K, other.rho, None if simulation is None else simulation.rho, limit))
    return found
