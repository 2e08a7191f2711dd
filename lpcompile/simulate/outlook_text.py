"""An outlook as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lpcompile.core.plan import BoundaryPlan, Plan
from lpcompile.core.tables import Column, Table, bar, percent, size, table_of
from lpcompile.runtime.methods import CHOSEN
from lpcompile.simulate.critical_path import CriticalPath, PathPart
from lpcompile.simulate.outlook import Neighbour, Outlook, OutlookRow
from lpcompile.simulate.step_text import simulation_text
from lpcompile.simulate.whole_run import whole_run_text

VERSION = 1
MAX_NAMED_PARTS, MIN_NAMED_SHARE = 5, 0.05  # of the critical path, in the sentence about it


def outlook_text(plan: Plan, found: Outlook) -> str:
    lines = [simulation_text(found.simulation), path_text(found)]
    if found.neighbours:
        lines += ["", neighbour_table(plan, found)]
    if found.sweep:
        lines += ["", row_table(found.sweep, "K")]
    if found.methods:
        lines += ["", row_table(found.methods, "method"), *choice_text(found.methods)]
    if found.run is not None:
        lines += ["", whole_run_text(found.run)]
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
    columns: list[Column[PathPart]] = [
        Column("critical path", str),
        Column("ms a step", lambda part: part.ms, "{:.4g}".format),
        Column("share", lambda part: part.share, percent),
        Column("load", lambda part: part.share, bar),
    ]
    return table_of(path.parts, columns)


def neighbour_table(plan: Plan, found: Outlook) -> Table:
    """The step with each boundary moved by one unit, either way: why it is where it is."""

    def cell(one: Neighbour | None) -> str:
        if one is None:
            return "no unit is left"
        return f"{one.step:.4g} ms ({100 * (one.step / found.simulation.step - 1):+.1f} %), after {one.after}"

    by = {(one.boundary, one.by): one for one in found.neighbours}
    columns: list[Column[BoundaryPlan]] = [
        Column("boundary", lambda b: b.index),
        Column("after", lambda b: b.path or b.after),
        Column("step if one unit earlier", lambda b: by.get((b.index, -1)), cell),
        Column("step if one unit later", lambda b: by.get((b.index, 1)), cell),
    ]
    return table_of(plan.boundaries, columns)


def row_table(rows: Sequence[OutlookRow], first: str) -> Table:
    """ρ over K (first = "K"), or over methods (first = "method")."""
    columns: list[Column[OutlookRow]] = [
        Column("K", lambda one: one.K) if first == "K" else Column("method", lambda one: one.method),
        Column("micro", lambda one: one.micro),
        Column("step ms", lambda one: one.step, "{:.4g}".format),
        Column("ρ", lambda one: one.rho, "{:.2f}".format),
        Column("idle", lambda one: one.idle, percent),
        Column("memory", lambda one: one.memory, size),
        Column("sent a step", lambda one: one.sent, size),
    ]
    if first == "method":
        columns += [
            Column("exact", lambda one: "yes" if one.exact else "no"),
            Column("steps late", lambda one: one.late, "{:.2g}".format),
            Column("extra parameters", lambda one: one.extra, "{:,}".format),
        ]
    return table_of(rows, columns)


def choice_text(rows: Sequence[OutlookRow]) -> list[str]:
    """Which methods would be faster than the default, and why it is the default all the same: one sentence."""
    chosen = next((one for one in rows if one.method == CHOSEN), None)
    if chosen is None:
        return []
    faster = ", ".join(one.method for one in rows if one.step < chosen.step and not one.exact)
    others = f"{faster} would be faster, and can lose accuracy" if faster else "no listed method is faster"
    return [f"method='auto' takes {CHOSEN}, with plain training's gradients; {others}"]


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
        **({"run": asdict(found.run)} if found.run is not None else {}),
    }
