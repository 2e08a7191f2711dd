"""The simulator's part of a report: timeline, critical path, ρ over K, tables, advice."""

from __future__ import annotations

from dataclasses import replace

from lpcompile.core.plan import Plan
from lpcompile.core.trace import batch_of, kind_of
from lpcompile.draw.charts import Lane
from lpcompile.errors import LpError
from lpcompile.planning.replan import replan
from lpcompile.planning.unit_choice import smallest_maximum
from lpcompile.report.data import ReportData, Sweep
from lpcompile.simulate.device_spec import DeviceSpec
from lpcompile.simulate.outlook import Outlook, outlook_row
from lpcompile.simulate.outlook_text import neighbour_table, path_table, path_text, row_table
from lpcompile.simulate.step import Simulation, default_device
from lpcompile.simulate.step_text import rank_table

MAX_SWEEP_STAGES = 16
MIN_DRAWN_SHARE = 1 / 4000  # of the timeline: shorter events are less than half a pixel


def with_outlook(data: ReportData, found: Outlook, device: DeviceSpec | None = None) -> ReportData:
    """The report with the simulator's outlook, in the order of `inspect`'s text."""
    plan, step = data.plan, found.simulation.step
    more = [("Ranks, simulated", rank_table(found.simulation)), ("Critical path", path_table(found.path))]
    more += [("Boundaries against their neighbours", neighbour_table(plan, found))] if found.neighbours else []
    more += [("Other K", row_table(found.sweep, "K"))] if found.sweep else []
    more += [("Other methods", row_table(found.methods, "method"))] if found.methods else []
    cards = [(f"simulated speedup on {found.simulation.device}", f"{found.simulation.rho:.2f}×"),
             ("a simulated step", f"{step:.4g} ms")]  # fmt: skip
    return replace(
        data,
        facts=(found.advice, path_text(found), *data.facts),
        cards=(*cards, *data.cards),
        lanes=tuple(lanes(found.simulation)),
        sweep=tuple(sweep(plan, device)),
        tables=(*data.tables[:-1], *more, *data.tables[-1:]),
    )


def lanes(found: Simulation) -> list[Lane]:
    """The time span with events of every rank, from 0; mini-batches are numbered from the first in it."""
    ranks = [[e for e in found.events if e.rank == rank] for rank in range(found.K)]
    if not all(ranks):
        return []
    begin, end = max(min(e.begin for e in rank) for rank in ranks), min(max(e.end for e in rank) for rank in ranks)
    least = (end - begin) * MIN_DRAWN_SHARE
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


def sweep(plan: Plan, device: DeviceSpec | None = None) -> list[Sweep]:
    """ρ for K = 1 to about twice the plan's K, with the same units and costs."""
    found, costs = [], [u.forward + u.backward for u in plan.units]
    for K in range(1, min(max(2 * plan.world, 8), MAX_SWEEP_STAGES, len(plan.units)) + 1):
        try:
            other = replan(plan, K)
        except LpError:
            continue
        simulated = outlook_row(plan, device or default_device(plan), K)
        limit = min(float(K), plan.serial / (smallest_maximum(costs, K) or 1.0))
        found.append(Sweep(K, other.rho, None if simulated is None else simulated.rho, limit))
    return found
