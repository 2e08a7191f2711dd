"""Artefacts of the compile pipeline as text, for `--print-after`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tabulate import tabulate

from lpcompile.core.cost import Profile
from lpcompile.passes.split.units import Unit
from lpcompile.planning.arrange import Arrangement


def text_of(name: str, artefacts: Mapping[str, Any]) -> str:
    value = artefacts[name]
    return f"{name}: {WRITERS[name](value)}" if name in WRITERS else f"{name}: {value}"


def units_text(units: list[Unit]) -> str:
    rows = [(u.name, u.last - u.first + 1, u.cut.after if u.cut else "(end)") for u in units]
    return f"{len(units)}\n" + tabulate(rows, ("unit", "operations", "cut after"))


def profile_text(costs: Profile) -> str:
    rows = [
        (u.name, f"{u.forward:.4g}", f"{u.backward:.4g}", u.parameters, u.saved_bytes, u.output_bytes)
        for u in costs.units
    ]
    headers = ("unit", "forward", "backward", "parameters", "saved bytes", "output bytes")
    return f"{costs.cost} on {costs.device}\n" + tabulate(rows, headers)


def arrangement_text(found: Arrangement) -> str:
    """The split, every stage and every AuxNet as code."""
    best = found.best
    lines = [f"K = {best.K}, cuts after units {list(best.cuts)}, step {best.step:.4g}, bound {best.lower_bound:.4g}"]
    for k, stage in enumerate(found.stages):
        lines += [f"-- stage {k}", stage.code.rstrip()]
    for k, made in enumerate(found.made):
        lines += [f"-- AuxNet or head of boundary {k + 1}: {made.total:.1%} of its stage", made.aux.code.rstrip()]
    return "\n".join(lines)


WRITERS: dict[str, Callable[[Any], str]] = {
    "captured": lambda captured: f"\n{captured.graph}",
    "tensors": lambda tensors: ", ".join(f"{t.dtype}{list(t.shape)}".removeprefix("torch.") for t in tensors),
    "sample": lambda tensors: ", ".join(f"{t.dtype}{list(t.shape)}".removeprefix("torch.") for t in tensors),
    "units": units_text,
    "costs": profile_text,
    "arrangement": arrangement_text,
    "plan": lambda plan: f"\n{plan}",
}
