"""Plans, units and cuts as text. A table is a list of columns, shown as text, as HTML or in a terminal.

>>> columns = [Column("stage", lambda s: s.index), Column("memory", lambda s: s.memory_bytes, size)]
>>> print(table_of(plan.stages, columns))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from lpcompile.core.cost import UnitCost
    from lpcompile.core.plan import AuxPlan, BoundaryPlan, Plan, StagePlan

BAR = 12  # characters of a full bar
OVER_BUDGET = 1.15  # measured share over the budget from which a plan says so
Item = TypeVar("Item")


class Table(str):
    """A table as text that keeps its headers and cells, so that pages show the same ones."""

    headers: list[str]
    rows: list[list[Any]]


@dataclass(frozen=True)
class Column(Generic[Item]):
    """One column: its header, how to get a value from an item, how to show the value."""

    header: str
    get: Callable[[Item], Any]
    show: Callable[[Any], str] = str


def table(rows: list[list[Any]], headers: list[str]) -> Table:
    from tabulate import tabulate

    found = Table(tabulate(rows, headers, tablefmt="simple", disable_numparse=True, stralign="left"))
    found.headers, found.rows = headers, rows
    return found


def table_of(items: Iterable[Item], columns: Sequence[Column[Item]]) -> Table:
    """One row for each item."""
    rows = [[column.show(column.get(item)) for column in columns] for item in items]
    return table(rows, [column.header for column in columns])


def plan_text(plan: Plan) -> str:
    """The whole plan: stages, boundaries, AuxNets, predictions, notes."""
    lines = [
        f"{plan.model}: K = {ranks_text(plan)} for method {plan.method!r}, costs {plan.cost} on {plan.device}",
        *([f"trains by {plan.recipe}"] if plan.recipe else []),
        *(["as published: the paper's ψ, β, noise, first weights and placement"] if plan.as_published else []),
        "",
        stage_table(plan),
    ]
    if plan.boundaries:
        lines += ["", boundary_table(plan)]
    if any(b.aux is not None for b in plan.boundaries):
        lines += ["", aux_table(plan)]
    lines += ["", *summary(plan)]
    return "\n".join(lines)


def ranks_text(plan: Plan) -> str:
    """How many stages, and on how many ranks where they are fewer."""
    return f"{plan.world} ranks with {plan.K // plan.world} stages each" if plan.ranks else f"{plan.K} stages"


def stage_table(plan: Plan) -> Table:
    unit = cost_unit(plan)
    most = max((s.work for s in plan.stages), default=1.0) or 1.0

    def units(s: StagePlan) -> Sequence[UnitCost]:
        return plan.units[s.first : s.last + 1]

    columns: list[Column[StagePlan]] = [
        Column("stage", lambda s: s.index),
        Column("rank", lambda s: plan.rank_of(s.index)),
        Column("units", lambda s: unit_range(plan, s)),
        Column("parameters", lambda s: s.parameters, "{:,}".format),
        Column(f"forward {unit}", lambda s: with_spread(s.forward, [u.forward_spread for u in units(s)])),
        Column(f"backward {unit}", lambda s: with_spread(s.backward, [u.backward_spread for u in units(s)])),
        Column("activations", lambda s: s.saved_bytes, size),
        Column("memory", lambda s: s.memory_bytes, size),
        Column("load", lambda s: s.work / most, bar),
    ]
    return table_of(plan.stages, columns if plan.ranks else [columns[0], *columns[2:]])


def unit_table(plan: Plan) -> Table:
    """The cost of every unit, with its spread and its share of the model's cost."""
    unit = cost_unit(plan)
    total = sum(u.forward + u.backward for u in plan.units) or 1.0

    def gflop(at: tuple[int, UnitCost]) -> float:
        return at[1].forward_flops / 1e9

    stage_of = {i: s.index for s in plan.stages for i in range(s.first, s.last + 1)}
    columns: list[Column[tuple[int, UnitCost]]] = [
        Column("stage", lambda at: stage_of[at[0]]),
        Column("unit", lambda at: at[1].name),
        Column(f"forward {unit}", lambda at: with_spread(at[1].forward, [at[1].forward_spread])),
        Column(f"backward {unit}", lambda at: with_spread(at[1].backward, [at[1].backward_spread])),
        Column("share", lambda at: (at[1].forward + at[1].backward) / total, tenths),
        Column("forward GFLOP", gflop, "{:.3g}".format),
        Column("parameters", lambda at: at[1].parameters, "{:,}".format),
        Column("activations", lambda at: at[1].saved_bytes, size),
        Column("output", lambda at: at[1].output_bytes, size),
    ]
    if unit == "GFLOP":  # then it is the cost, and there already
        columns = [column for column in columns if column.get is not gflop]
    return table_of(enumerate(plan.units), columns)


def boundary_table(plan: Plan) -> Table:
    columns: list[Column[BoundaryPlan]] = [
        Column("boundary", lambda b: b.index),
        Column("after", lambda b: b.path or b.after),
        Column("carries", lambda b: ", ".join(map(str, b.specs))),
        Column("size", lambda b: b.nbytes, size),
    ]
    return table_of(plan.boundaries, columns)


def aux_table(plan: Plan) -> Table:
    """The AuxNet of every boundary, or the head of every stage: its host rank, its cost, its layers."""
    unit = cost_unit(plan)

    def share(aux: AuxPlan) -> str:
        return tenths(aux.share) + (" (over budget)" if _is_over(plan, aux) else "")

    columns: list[Column[tuple[BoundaryPlan, AuxPlan]]] = [
        Column("head of", lambda at: at[0].index - 1) if plan.heads else Column("AuxNet for", lambda at: at[0].index),
        Column("rank", lambda at: at[1].rank),
        Column(f"forward {unit}", lambda at: at[1].forward, "{:.3g}".format),
        Column(f"backward {unit}", lambda at: at[1].backward, "{:.3g}".format),
        Column("of its stage", lambda at: at[1], share),
        Column("parameters", lambda at: at[1].parameters, "{:,}".format),
        Column("kind, start", lambda at: (at[1].kind, at[1].init, plan.aux_dtype), _distinct),
        Column("made of", lambda at: at[1], made_of),
    ]
    return table_of([(b, b.aux) for b in plan.boundaries if b.aux is not None], columns)


def _distinct(words: Iterable[str | None]) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))


def made_of(aux: Any) -> str:
    """The blocks of an AuxNet, from its plan or its record."""
    if aux.made:
        return str(aux.made)
    kept = ", ".join(aux.kept) if len(aux.kept) <= 3 else f"{aux.kept[0]} … {aux.kept[-1]} ({len(aux.kept)})"
    made = f"keeps {kept or 'no block'}, drops {len(aux.dropped)}" if aux.kept or aux.dropped else aux.kind
    return f"{made}; {len(aux.thinned)} layers thinned" if aux.thinned else made


def summary(plan: Plan) -> list[str]:
    """What the method means, the predicted speedup, how close to optimal the split is, and notes."""
    what, off = cost_unit(plan), uncertainty(plan)
    known = f", of costs known to ± {percent(off)}" if off else ""
    lines = [
        *([f"method: {plan.choice}"] if plan.choice else []),
        f"step {plan.step:.4g} {what} against {plan.serial:.4g} {what} undivided: predicted speedup {plan.rho:.2f} "
        f"of at most {plan.world}; largest stage / mean {plan.imbalance:.3f}",
        f"optimal: lower bound {plan.lower_bound:.4g} {what}, gap {100 * plan.gap:.2f} %{known}",
        f"one step compared with the model's own: {'equal, bitwise' if plan.gate == 'bitwise' else plan.gate}",
        *over_budget(plan),
    ]
    violations = [(b.aux.violation, b.index) for b in plan.boundaries if b.aux and b.aux.violation is not None]
    if violations:
        worst, boundary = max(violations)
        lines.append(f"start: λ and X differ by at most {worst:.3g} of the square of X (boundary {boundary})")
    for name, stages in plan.tied:
        lines.append(f"tied: {name} is used in stages {', '.join(map(str, stages))}; their gradients are summed")
    return lines + [f"note: {note}" for note in plan.notes]


def uncertainty(plan: Plan) -> float:
    """The spread of the least certain stage's cost, as a share of the mean stage; 0 where costs are counted."""
    spreads = [
        math.hypot(*(x for u in plan.units[s.first : s.last + 1] for x in (u.forward_spread, u.backward_spread)))
        for s in plan.stages
    ]
    mean = sum(s.forward + s.backward for s in plan.stages) / max(len(plan.stages), 1)
    return max(spreads, default=0.0) / mean if mean else 0.0


def over_budget(plan: Plan) -> list[str]:
    """A line for each AuxNet that costs clearly more than its budget."""
    found = [(b.index, b.aux) for b in plan.boundaries if b.aux is not None]
    return [
        f"over budget: the {'head' if plan.heads else 'AuxNet'} of boundary {k} takes {tenths(aux.share)} of its "
        f"stage, and the budget is {tenths(plan.aux_budget)}; none smaller was found, so try another K or a larger "
        f"budget"
        for k, aux in found
        if _is_over(plan, aux)
    ]


def _is_over(plan: Plan, aux: AuxPlan) -> bool:
    """AuxNets that the user gave have no budget."""
    return 0 < OVER_BUDGET * plan.aux_budget < aux.share and aux.kind not in ("user", "cut")


def unit_range(plan: Plan, stage: StagePlan) -> str:
    names = [u.name for u in plan.units[stage.first : stage.last + 1]]
    if len(names) <= 2:
        return ", ".join(names)
    return f"{names[0]} … {names[-1]} ({len(names)})"


class ListedCut(Protocol):
    """The fields of a cut that its table shows."""

    @property
    def position(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def after(self) -> str: ...
    @property
    def legal(self) -> bool: ...
    @property
    def specs(self) -> Sequence[object]: ...
    @property
    def reason(self) -> str: ...


def cut_table(cuts: Iterable[ListedCut]) -> Table:
    """Every position, legal or not, with the reason."""
    columns: list[Column[ListedCut]] = [
        Column("position", lambda c: c.position),
        Column("after", lambda c: c.path or c.after),
        Column("cut", lambda c: "yes" if c.legal else "no"),
        Column("carries / why not", lambda c: ", ".join(map(str, c.specs)) if c.legal else c.reason),
    ]
    return table_of(cuts, columns)


def cost_unit(plan: Plan) -> str:
    return "GFLOP" if plan.cost == "flops" else "ms"


def with_spread(cost: float, spreads: Sequence[float]) -> str:
    """A cost with the spread of its units, which vary independently; counted costs have none."""
    spread = math.hypot(*spreads)
    return f"{cost:.3g} ± {spread:.2g}" if spread else f"{cost:.3g}"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def tenths(share: float) -> str:
    """Percent with one digit more."""
    return f"{100 * share:.1f} %"


def bar(share: float, width: int = BAR) -> str:
    return "█" * max(1, round(width * min(1.0, share)))


def size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError
