"""Plans and cuts as text that a person reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpcompile.core.plan import Plan, StagePlan
    from lpcompile.passes.split.cuts import Cut


class Table(str):
    """A table as text, which still has its headers and rows: pages show the same ones."""

    headers: list[str]
    rows: list[list[Any]]


def table(rows: list[list[Any]], headers: list[str]) -> Table:
    from tabulate import tabulate

    found = Table(tabulate(rows, headers, tablefmt="simple", disable_numparse=True, stralign="left"))
    found.headers, found.rows = headers, rows
    return found


def plan_text(plan: Plan) -> str:
    """The whole plan: stages, boundaries, what to expect, what to know."""
    lines = [
        f"{plan.model}: K = {plan.K} stages for method {plan.method!r}, costs {plan.cost} on {plan.device}",
        "",
        stage_table(plan),
    ]
    if plan.boundaries:
        lines += ["", boundary_table(plan)]
    if any(b.aux is not None for b in plan.boundaries):
        lines += ["", aux_table(plan)]
    lines += ["", *summary(plan)]
    return "\n".join(lines)


def stage_table(plan: Plan) -> Table:
    unit = "GFLOP" if plan.cost == "flops" else "ms"
    headers = ["stage", "units", "parameters", f"forward {unit}", f"backward {unit}", "activations", "memory", "load"]
    most = max((s.work for s in plan.stages), default=1.0) or 1.0
    rows = [
        [
            s.index,
            unit_range(plan, s),
            f"{s.parameters:,}",
            _time(s.forward, [u.forward_spread for u in plan.units[s.first : s.last + 1]]),
            _time(s.backward, [u.backward_spread for u in plan.units[s.first : s.last + 1]]),
            size(s.saved_bytes),
            size(s.memory_bytes),
            "█" * max(1, round(12 * s.work / most)),
        ]
        for s in plan.stages
    ]
    return table(rows, headers)


def _time(cost: float, spreads: Sequence[float]) -> str:
    """With the spread of its units, which vary on their own; counted costs have none."""
    spread = math.hypot(*spreads)
    return f"{cost:.3g} ± {spread:.2g}" if spread else f"{cost:.3g}"


def unit_table(plan: Plan) -> Table:
    """The cost of every unit, with spread and its share of the whole."""
    total = sum(u.forward + u.backward for u in plan.units) or 1.0
    stage_of = {i: s.index for s in plan.stages for i in range(s.first, s.last + 1)}
    rows = [
        [
            stage_of[i],
            u.name,
            _time(u.forward, [u.forward_spread]),
            _time(u.backward, [u.backward_spread]),
            f"{100 * (u.forward + u.backward) / total:.1f} %",
            f"{u.forward_flops / 1e9:.3g}",
            f"{u.parameters:,}",
            size(u.saved_bytes),
            size(u.output_bytes),
        ]
        for i, u in enumerate(plan.units)
    ]
    cost = "GFLOP" if plan.cost == "flops" else "ms"
    headers = ["stage", "unit", f"forward {cost}", f"backward {cost}", "share", "forward GFLOP", "parameters",
               "activations", "output"]  # fmt: skip
    return table(rows, headers)


def boundary_table(plan: Plan) -> Table:
    rows = [
        [
            b.index,
            b.path or b.after,
            ", ".join(map(str, b.specs)),
            size(b.nbytes),
        ]
        for b in plan.boundaries
    ]
    return table(rows, ["boundary", "after", "carries", "size"])


def aux_table(plan: Plan) -> Table:
    """The AuxNet of every boundary, or the head of every stage: where it runs, what it costs, what it is made of."""
    unit = "GFLOP" if plan.cost == "flops" else "ms"
    rows = []
    for b in plan.boundaries:
        if b.aux is not None:
            a = b.aux
            kept = ", ".join(a.kept) if len(a.kept) <= 3 else f"{a.kept[0]} … {a.kept[-1]} ({len(a.kept)})"
            made = f"keeps {kept or 'no block'}, drops {len(a.dropped)}" if a.kept or a.dropped else a.kind
            thinned = f"; {len(a.thinned)} layers thinned" if a.thinned else ""
            of = b.index - 1 if plan.heads else b.index
            how = ", ".join(dict.fromkeys(word for word in (a.kind, a.init, plan.aux_dtype) if word))
            rows.append(
                [of, a.rank, f"{a.forward:.3g}", f"{a.backward:.3g}", f"{100 * a.share:.1f} %",
                 f"{a.parameters:,}", how, made + thinned]
            )  # fmt: skip
    headers = ["head of" if plan.heads else "AuxNet for", "rank", f"forward {unit}", f"backward {unit}",
               "of its stage", "parameters", "kind, start", "made of"]  # fmt: skip
    return table(rows, headers)


def summary(plan: Plan) -> list[str]:
    what = "GFLOP" if plan.cost == "flops" else "ms"
    lines = [
        f"step {plan.step:.4g} {what} against {plan.serial:.4g} {what} undivided: predicted speedup {plan.rho:.2f} "
        f"of at most {plan.K}; largest stage / mean {plan.imbalance:.3f}",
        f"optimal: lower bound {plan.lower_bound:.4g} {what}, gap {100 * plan.gap:.2f} %; checked: {plan.gate}",
    ]
    violations = [(b.aux.violation, b.index) for b in plan.boundaries if b.aux and b.aux.violation is not None]
    if violations:
        worst, boundary = max(violations)
        lines.append(f"start: λ and X differ by at most {worst:.3g} of the square of X (boundary {boundary})")
    for name, stages in plan.tied:
        lines.append(f"tied: {name} is used in stages {', '.join(map(str, stages))}; their gradients are summed")
    return lines + [f"note: {note}" for note in plan.notes]


def unit_range(plan: Plan, stage: StagePlan) -> str:
    names = [u.name for u in plan.units[stage.first : stage.last + 1]]
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)})"


def cut_table(cuts: Sequence[Cut]) -> Table:
    """Every position, legal or not, with the reason."""
    rows = [
        [
            c.position,
            c.path or c.after,
            "yes" if c.legal else "no",
            ", ".join(map(str, c.specs)) if c.legal else c.reason,
        ]
        for c in cuts
    ]
    return table(rows, ["position", "after", "cut", "carries / why not"])


def size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError
