"""The regions of a cluster as tables, as one page, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from lpcompile.core.plan import Plan
from lpcompile.core.tables import percent, size
from lpcompile.draw import html
from lpcompile.draw.markdown import NO_VALUE, markdown
from lpcompile.simulate.device_spec import DeviceSpec
from lpcompile.simulate.regions.places import FAMILIES, Region, family
from lpcompile.simulate.scaling import DATA_PARALLEL, SHARDED, Split

VERSION = 1
COLOURS = {"DDP": "data", "FSDP": "message", "pipeline": "forward", "stream": "backward", "AuxNets": "auxiliary"}
SHOWN = {DATA_PARALLEL: "DDP", SHARDED: "FSDP"}
KINDS = {False: "the fastest of all", True: "the fastest with plain training's gradients"}
STYLE = "\n".join(
    f"table.regions td.{c} {{ background: color-mix(in srgb, var(--{c}) 30%, var(--page)); padding-left: .7rem; }}"
    for c in COLOURS.values()
)


def rate_text(rate: float) -> str:
    return f"{rate / 1e9:g} Gb/s" if rate >= 1e9 else f"{rate / 1e6:g} Mb/s"


def cell_text(region: Region, exact: bool) -> str:
    best = region.fastest(exact)
    if best is None:
        return NO_VALUE
    lead = f" {region.lead(exact):.2f}×" if len(region.among(exact)) > 1 else ""
    return f"{SHOWN.get(best.method, best.method)}{lead}"


def headline(plan: Plan, device: DeviceSpec, gpus: int) -> str:
    where = "each on a host of its own" if gpus == 1 else f"{gpus} on a host"
    return f"{plan.model} on {device.name} devices, {where}; costs {plan.cost}, simulated steps"


def regions_text(found: Sequence[Region], plan: Plan, device: DeviceSpec, gpus: int) -> str:
    """For every number of ranks a table of rates and batches; a method, and how much faster it is than the next."""
    parts = [headline(plan, device, gpus)]
    for exact, kind in KINDS.items():
        for K, grid in _grids(found):
            batches = [str(r.batch) for r in grid[0]]
            lines = [[rate_text(line[0].rate), *(cell_text(r, exact) for r in line)] for line in grid]
            parts.append(f"K = {K}: {kind}, by rate of the links and samples a step")
            parts.append(markdown(["", *batches], lines))
        parts.append(f"{kind}: {counted(found, exact)}")
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes(device))])


def counted(found: Sequence[Region], exact: bool) -> str:
    """How often each family is the fastest."""
    names = Counter(family(best.method) for r in found if (best := r.fastest(exact)) is not None)
    return ", ".join(f"{name} in {names[name]} of {len(found)} places" for name in FAMILIES if names[name])


def notes(device: DeviceSpec) -> list[str]:
    memory = f"; what needs more than {device.memory_gib:g} GiB is left out" if device.memory_gib else ""
    families = ", ".join(
        f"{name} ({', '.join(methods)})" for name, methods in FAMILIES.items() if name not in SHOWN.values()
    )
    return [
        "the number after a name: the step of the next family over this one's. Only times of a step are compared, not "
        "steps to an accuracy, which delayed gradients (stream) and AuxNets need more of where steps are few.",
        f"all use K devices: K copies of the model (DDP, FSDP) or K stages of it, {families}{memory}. More layers than "
        f"stages and a batch that can be divided are needed; {NO_VALUE} where nothing runs.",
    ]


def regions_page(found: Sequence[Region], plan: Plan, device: DeviceSpec, gpus: int, about: str) -> str:
    """One page; a cell's tooltip has all families there."""
    grids = []
    for exact, kind in KINDS.items():
        grids.append(f"<h2>{escape(kind[0].upper() + kind[1:])}</h2><p>{escape(counted(found, exact))}</p>")
        for K, grid in _grids(found):
            names = [f"K = {K}", *(f"batch {r.batch}" for r in grid[0])]
            rows = [[html.cell(rate_text(line[0].rate)), *(_cell(r, exact) for r in line)] for line in grid]
            grids.append(f'<div class="wide">{html.table(names, rows, "regions")}</div>')
    colours = "".join(f'<span><i class="{c}"></i>{escape(name)}</span>' for name, c in COLOURS.items())
    return html.page(
        "simulate",
        f"{plan.model}: which way to train is fastest where",
        more=STYLE,
        headline=escape(headline(plan, device, gpus)),
        about=escape(about),
        legend=colours,
        grids="".join(grids),
        notes="".join(f"<li>{escape(note)}</li>" for note in notes(device)),
    )


def _cell(region: Region, exact: bool) -> str:
    best = region.fastest(exact)
    if best is None:
        return html.cell(NO_VALUE)
    told = "&#10;".join(escape(_told(one)) for one in region.among(exact))
    return f'<td class="{COLOURS[family(best.method)]}" title="{told}">{escape(cell_text(region, exact))}</td>'


def _told(one: Split) -> str:
    micro = f", {one.micro} micro-batches" if one.micro > 1 else ""
    return (
        f"{SHOWN.get(one.method, one.method)}: {one.step:.4g} ms, ρ = {one.rho:.2f}, idle {percent(one.idle)}, "
        f"{size(one.memory)} a device{micro}"
    )


def _grids(found: Sequence[Region]) -> list[tuple[int, list[list[Region]]]]:
    """By K: lines of a rate each, from the fastest link on, with the batches."""
    grids = []
    for K in dict.fromkeys(r.K for r in found):
        mine = [r for r in found if r.K == K]
        grids.append((K, [[r for r in mine if r.rate == rate] for rate in dict.fromkeys(r.rate for r in mine)]))
    return grids


def regions_json(
    found: Sequence[Region], plan: Plan, device: DeviceSpec, gpus: int, machine: dict[str, Any]
) -> dict[str, Any]:
    """machine: where it was simulated, with commit and command."""
    return {"version": VERSION, "model": plan.model, "cost": plan.cost, "device": device.to_json(), "gpus": gpus,
            "machine": machine, "regions": [asdict(one) for one in found]}  # fmt: skip
