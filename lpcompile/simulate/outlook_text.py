"""An outlook as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lpcompile.core.plan import Plan
from lpcompile.draw.tables import Table, size, table
from lpcompile.simulate.critical_path import CriticalPath
from lpcompile.simulate.outlook import Neighbour, Outlook, OutlookRow
from lpcompile.simulate.step_text import bar, percent, simulation_text

VERSION = 1
MAX_NAMED_PARTS, MIN_NAMED_SHARE = 5, 0.05  # of the critical path, in the sentence about it


def outlook_text(plan: Plan, found: Outlook) -> str:
    lines = [simulation_text(found.simulation), path_text(found)]
    if found.neighbours:
        lines += ["", neighbour_table(plan, found)]
    if found.sweep:
        lines += ["", row_table(found.sweep, "K")]
    if found.methods:
        lines += ["", row_table(found.methods, "method")]
    return "\n".join([*lines, "", found.advice])


def path_text(found: Outlook) -> str:
    """What the step's length is made of, and what would shorten it: one line."""
    named, rank = list[str](), -1
    for part in found.path.parts[:MAX_NAMED_PARTS]:
        if part.share < MIN_NAMED_SHARE:
            break
        named.append(f"{'its ' + part.what if part.rank == rank and part.peer < 0 else part} ({percent(part.share)})")
        rank = part.rank if part.peer < 0 else -1
    return f"critical path: {', '.join(named)}; shorter with {found.remedy}"


def path_table(path: CriticalPath) -> Table:
    rows = [[str(part), f"{part.ms:.4g}", percent(part.share), bar(part.share)] for part in path.parts]
    return table(rows, ["critical path", "ms a step", "share", "load"])


def neighbour_table(plan: Plan, found: Outlook) -> Table:
    """Why every boundary is where it is: the step with the cut moved by one unit, either way."""

    def cell(one: Neighbour | None) -> str:
        if one is None:
            return "no unit is left"
        return f"{one.step:.4g} ms ({100 * (one.step / found.simulation.step - 1):+.1f} %), after {one.after}"

    by = {(one.boundary, one.by): one for one in found.neighbours}
    rows = [
        [b.index, b.path or b.after, cell(by.get((b.index, -1))), cell(by.get((b.index, 1)))] for b in plan.boundaries
    ]
    return table(rows, ["boundary", "after", "step if one unit earlier", "step if one unit later"])


def row_table(rows: Sequence[OutlookRow], first: str) -> Table:
    """ρ over K, or over methods."""
    cells = [
        [
            one.K if first == "K" else one.method,
            one.micro,
            f"{one.step:.4g}",
            f"{one.rho:.2f}",
            percent(one.idle),
            size(one.memory),
            size(one.sent),
            *(["yes" if one.exact else "no"] if first == "method" else []),
        ]
        for one in rows
    ]
    headers = [
        first,
        "micro",
        "step ms",
        "ρ",
        "idle",
        "memory",
        "sent a step",
        *(["exact"] if first == "method" else []),
    ]
    return table(cells, headers)


def outlook_json(found: Outlook) -> dict[str, Any]:
    """Stable: keys are added, never renamed, while the version stays."""
    simulation = asdict(found.simulation)
    del simulation["events"]
    return {
        "version": VERSION,
        "simulation": {**simulation, "rho": found.simulation.rho},
        "neighbours": [asdict(one) for one in found.neighbours],
        "sweep": [asdict(one) for one in found.sweep],
        "methods": [asdict(one) for one in found.methods],
        "advice": found.advice,
        "critical_path": {**asdict(found.path), "remedy": found.remedy},
    }
