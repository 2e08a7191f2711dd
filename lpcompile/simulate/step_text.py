"""Simulations as text and as Chrome traces."""

from __future__ import annotations

from typing import Any

from lpcompile.core.tables import Column, Table, bar, percent, size, table_of
from lpcompile.simulate.step import Simulation


def simulation_text(found: Simulation) -> str:
    """The simulated step in a few lines: each rank's load, the speedup, notes."""
    replicas = f" x {found.replicas} replicas" if found.replicas > 1 else ""
    micro = f", {found.micro} micro-batches a step" if found.micro > 1 else ""
    lines = [
        f"simulated {found.method!r}: K = {found.K}{replicas}{micro}, on {found.device}",
        "",
        rank_table(found),
        "",
        f"step {found.step:.4g} ms against {found.serial:.4g} ms on one device: ρ = {found.rho:.2f}",
    ]
    if found.averaged:
        lines.append(f"averaging gradients over {found.replicas} replicas takes {found.averaged:.3g} ms of it")
    if found.unknown:
        lines.append(f"note: the cost of {', '.join(found.unknown)} is not known and was taken as 0")
    return "\n".join(lines)


def rank_table(found: Simulation) -> Table:
    columns: list[Column[int]] = [
        Column("rank", lambda r: r),
        Column("busy ms", lambda r: found.busy[r], "{:.3g}".format),
        Column("idle", lambda r: found.idle[r], percent),
        Column("sends a step", lambda r: found.sent[r], size),
        Column("load", lambda r: found.busy[r] / found.step if found.step else 0.0, bar),
    ]
    return table_of(range(found.K), columns)


def chrome_trace(found: Simulation) -> dict[str, Any]:
    """The last steps for Perfetto and chrome://tracing, in the format of the trainer's traces: one process per rank."""
    first = min((e.begin for e in found.events), default=0.0)
    events: list[dict[str, Any]] = []
    for rank in range(found.K):
        at = {"pid": rank, "tid": 0}
        events.append({"ph": "M", "name": "process_name", **at, "args": {"name": f"rank {rank}: stage {rank}"}})
        events.append({"ph": "M", "name": "process_sort_index", **at, "args": {"sort_index": rank}})
    for e in found.events:
        kind = "wait" if e.kind == "average" else e.kind
        events.append(
            {"ph": "X", "name": e.name, "cat": kind, "pid": e.rank, "tid": 0, "ts": round(1e3 * (e.begin - first), 3),
             "dur": round(1e3 * (e.end - e.begin), 3), "args": {"step": e.step}}
        )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}
