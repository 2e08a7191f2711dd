"""Splits over devices as tables, as JSON, and as a sentence of advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lpcompile.core.plan import Plan
from lpcompile.core.tables import Column, percent, size, table, table_of
from lpcompile.simulate.device_spec import DeviceSpec
from lpcompile.simulate.scaling import DATA_PARALLEL, Split, fastest

VERSION = 1


def split_table(rows: Sequence[Split]) -> str:
    """All splits over the same devices; the fastest has a star."""
    best = min(rows, key=lambda one: one.step, default=None)
    columns: list[Column[Split]] = [
        Column("", lambda one: "*" if one is best else ""),
        Column("method", lambda one: one.method),
        Column("K", lambda one: one.K),
        Column("replicas", lambda one: one.replicas),
        Column("micro", lambda one: one.micro),
        Column("step ms", lambda one: one.step, "{:.4g}".format),
        Column("ρ", lambda one: one.rho, "{:.2f}".format),
        Column("samples/s", lambda one: one.samples_per_s, "{:,.0f}".format),
        Column("efficiency", lambda one: one.efficiency, percent),
        Column("idle", lambda one: one.idle, percent),
        Column("memory", lambda one: one.memory, size),
    ]
    return table_of(rows, columns)


def scaling_table(rows: dict[int, list[Split]], method: str, pipelines: Sequence[str]) -> str:
    """The fastest split of each family for growing numbers of devices."""
    cells = []
    for devices, found in rows.items():
        cell: list[Any] = [devices, f"{found[0].batch:,}" if found else ""]
        for names in ((DATA_PARALLEL,), (method,), tuple(pipelines)):
            one = fastest(found, *names)
            shown = f"{one.samples_per_s:,.0f} ({percent(one.efficiency)})" if one else "-"
            cell.append(f"{shown}, K = {one.K}" if one and one.K > 1 else shown)
        cells.append(cell)
    headers = ["devices", "batch", DATA_PARALLEL, method, " or ".join(pipelines)]
    return table(cells, headers)


def advice(rows: Sequence[Split], method: str, pipelines: Sequence[str], device: DeviceSpec) -> str:
    """One sentence: the fastest way to use the devices."""
    plain, ours, pipe = fastest(rows, DATA_PARALLEL), fastest(rows, method), fastest(rows, *pipelines)
    limit = device.memory_gib * 2**30 if device.memory_gib else None
    if ours is None:
        return "No split into stages divides this batch: raise --batch, or use data parallelism alone."
    others = [one for one in (plain, pipe) if one is not None and not (limit and one.memory > limit)]
    best = min(others, key=lambda one: one.step, default=None)
    way = f"{method} with K = {ours.K} stages x {ours.replicas} replicas"
    if best is None:
        return f"Use {way}: nothing else fits into {device.memory_gib:g} GiB a device."
    name = best.method if best.K == 1 else f"{best.method} with K = {best.K}"
    if ours.step < best.step:
        return f"Use {way}: {best.step / ours.step:.2f} times as fast as {name}, the best of the others."
    return f"Use {name}: {ours.step / best.step:.2f} times as fast as {way}, the best split into layers by {method}."


def scaling_text(
    plan: Plan,
    device: DeviceSpec,
    nodes: int,
    method: str,
    pipelines: Sequence[str],
    strong: dict[int, list[Split]],
    weak: dict[int, list[Split]],
) -> str:
    most = max(strong)
    batches = [rows[most][0].batch if rows[most] else 0 for rows in (strong, weak)]
    return "\n".join(
        [
            f"{plan.model} on {nodes} nodes x {device.gpus} {device.name} devices; costs {plan.cost}, times of a step "
            f"(not of training to an accuracy)",
            "",
            f"strong scaling: a batch of {batches[0]:,} on {most} devices (* fastest)",
            "",
            split_table(strong[most]),
            "",
            f"weak scaling: a batch of {batches[1]:,} on {most} devices",
            "",
            split_table(weak[most]),
            "",
            "samples/s (efficiency) of the fastest split, one batch for all (strong)",
            "",
            scaling_table(strong, method, pipelines),
            "",
            "the same, the batch growing with the devices (weak)",
            "",
            scaling_table(weak, method, pipelines),
            "",
            f"At one batch for all: {advice(strong[most], method, pipelines, device)}",
            f"At a batch that grows with the devices: {advice(weak[most], method, pipelines, device)}",
        ]
    )


def scaling_json(
    plan: Plan, device: DeviceSpec, nodes: int, strong: dict[int, list[Split]], weak: dict[int, list[Split]]
) -> dict[str, Any]:
    def plain(rows: dict[int, list[Split]]) -> list[dict[str, Any]]:
        return [
            {**asdict(one), "devices": devices, "samples_per_s": one.samples_per_s, "efficiency": one.efficiency}
            for devices, found in rows.items()
            for one in found
        ]

    return {"version": VERSION, "model": plan.model, "cost": plan.cost, "device": device.to_json(), "nodes": nodes,
            "strong": plain(strong), "weak": plain(weak)}  # fmt: skip
