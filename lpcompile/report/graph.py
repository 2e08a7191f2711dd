"""The model as a graph: a column of units per stage, boundaries between them, AuxNets above.

x ──────▶ AuxNet ──▶ λ1 ─────▶ AuxNet ──▶ λ2          the row of AuxNets: λ without waiting for the stages
│                    ┊│                   ┊│
unit                 ┊unit                ┊unit       one column per stage, in the hue of its rank
unit                 ┊unit                ┊unit
X1 ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┘X2 ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┘            dashed: the penalty between X and λ
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lpcompile.core.plan import BoundaryPlan, Plan
from lpcompile.core.tables import size
from lpcompile.draw.charts import LETTER
from lpcompile.draw.figure import Figure, Group, Item, Line, Point, Rect, Text, hue_of
from lpcompile.report.data import ReportData

BOX, GAP = (176, 26), 12  # pixels of a unit, and between two
MAX_TALL = 16  # units below each other before a stage gets another column
PAD, BETWEEN = 14, 92  # pixels around the units of a stage, and between stages
AUX = (132, 34)
TOP = 128  # y of the first unit
PILL = (64, 20)


@dataclass(frozen=True)
class StageColumn:
    """The position of a stage in the drawing."""

    x: float
    width: float
    bottom: float
    units: tuple[Point, ...]  # the top left corner of each

    @property
    def enters(self) -> Point:
        """Position of its input: above its first unit."""
        return self.units[0][0] + BOX[0] / 2, TOP - 42

    @property
    def leaves(self) -> Point:
        return self.units[-1][0] + BOX[0] / 2, self.bottom + 34


def graph(data: ReportData) -> Figure:
    plan = data.plan
    columns = _columns(plan)
    hues = [hue_of(k, plan.K) for k in range(plan.K)]
    items: list[Item] = []
    for k, column in enumerate(columns):
        items.append(Group((_panel(plan, k, column),), hues[k], ("stage", str(k))))
    items += _edges(data, columns)
    for k, column in enumerate(columns):
        items.append(Group(_heading(plan, k, column), hues[k], ("stage", str(k))))
        items += [_unit(data, i, column, hues[k]) for i in range(plan.stages[k].first, plan.stages[k].last + 1)]
    items += _inputs(plan, columns)
    for boundary in plan.boundaries:
        items += _boundary(plan, boundary, columns, hues)
    height = max(c.bottom for c in columns) + 84
    return Figure("graph", columns[-1].x + columns[-1].width + PAD, height, tuple(items))


def _columns(plan: Plan) -> list[StageColumn]:
    found, x = [], float(PAD)
    for stage in plan.stages:
        count = stage.last - stage.first + 1
        across = -(-count // MAX_TALL)
        tall = -(-count // across)
        units = tuple((x + PAD + (i // tall) * (BOX[0] + 34), TOP + (i % tall) * (BOX[1] + GAP)) for i in range(count))
        width = 2 * PAD + across * BOX[0] + (across - 1) * 34
        found.append(StageColumn(x, width, TOP + tall * (BOX[1] + GAP) - GAP + PAD, units))
        x += width + BETWEEN
    return found


def _panel(plan: Plan, k: int, column: StageColumn) -> Rect:
    stage = plan.stages[k]
    title = f"stage {k} on rank {k}: {stage.last - stage.first + 1} units, {stage.parameters:,} parameters"
    return Rect(column.x, TOP - 26, column.width, column.bottom - TOP + 26, "stage", title, 8)


def _heading(plan: Plan, k: int, column: StageColumn) -> tuple[Item, ...]:
    spent = plan.stages[k].forward + plan.stages[k].backward
    share = 100 * spent / (sum(s.forward + s.backward for s in plan.stages) or 1.0)
    return (
        Text(column.x + PAD, TOP - 9, f"stage {k}", "title"),
        Text(column.x + column.width - PAD, TOP - 9, f"{share:.0f} %", anchor="end"),
    )


def _unit(data: ReportData, i: int, column: StageColumn, hue: int) -> Group:
    plan = data.plan
    stage = next(s for s in plan.stages if s.first <= i <= s.last)
    unit, (x, y) = plan.units[i], column.units[i - stage.first]
    most = max(u.forward + u.backward for u in plan.units) or 1.0
    share = (unit.forward + unit.backward) / most
    width, height = BOX
    items: list[Item] = []
    if data.nodes and max((n.lane for n in data.nodes[i]), default=0) > 0:  # values that live beside each other
        right = x + width
        bow = ((right, y + 5), (right + 15, y + 5), (right + 15, y + height - 5), (right, y + height - 5))
        items.append(Line(bow, "edge", "curve"))
    items += [
        Rect(x, y, width, height, "unit", unit.name, 5),
        Rect(x + 6, y + height - 5, (width - 12) * share, 2.5, "share"),
        Text(x + 8, y + 15, _end(unit.name, 24), "label"),
    ]
    return Group(tuple(items), hue, ("unit", str(i)))


def _edges(data: ReportData, columns: Sequence[StageColumn]) -> list[Item]:
    """Edges between units; between neighbours in two stages, the boundary is drawn instead."""
    stage_of = {i: s.index for s in data.plan.stages for i in range(s.first, s.last + 1)}
    found: list[Item] = []
    for i, j in data.edges:
        a, b = stage_of[i], stage_of[j]
        if a != b and j == i + 1:
            continue
        ax, ay = columns[a].units[i - data.plan.stages[a].first]
        bx, by = columns[b].units[j - data.plan.stages[b].first]
        if ax == bx and j == i + 1:
            found += _arrow(((ax + BOX[0] / 2, ay + BOX[1]), (bx + BOX[0] / 2, by)))
        elif ax == bx:
            right = ax + BOX[0]
            bow = min(30.0, 12 + 2.0 * (j - i))
            found.append(Line(((right, ay + 13), (right + bow, ay + 13), (right + bow, by + 13), (right, by + 13)),
                              "edge skip", "curve"))  # fmt: skip
        else:
            start, end = (ax + BOX[0], ay + 13), (bx, by + 13)
            middle = (start[0] + end[0]) / 2
            skip = "" if j == i + 1 else " skip"
            found.append(Line((start, (middle, start[1]), (middle, end[1]), end), f"edge{skip}", "curve"))
    return found


def _inputs(plan: Plan, columns: Sequence[StageColumn]) -> list[Item]:
    """The model inputs, above the stages that use them."""
    found: list[Item] = []
    for stage, column in zip(plan.stages, columns, strict=True):
        if not stage.inputs:
            continue
        text, (x, y) = shorten(", ".join(stage.inputs), 22), column.enters
        if stage.index > 0:  # beside λ or X, which comes from the left
            text = shorten(text, 14)
            x += PILL[0] / 2 + 8 + _width(text) / 2
        found += _pill(x, y, text, ", ".join(stage.inputs))
        found += _arrow(((x, y + PILL[1] / 2), (x, TOP if stage.index == 0 else TOP - 26)))
    return found


def _boundary(plan: Plan, boundary: BoundaryPlan, columns: Sequence[StageColumn], hues: Sequence[int]) -> list[Item]:
    k = boundary.index
    below, above = columns[k - 1], columns[k]
    (x, y), (ex, ey) = below.leaves, above.enters
    bottom = (below.units[-1][0] + BOX[0] / 2, below.units[-1][1] + BOX[1])
    items: list[Item] = [*_arrow((bottom, (x, y - PILL[1] / 2)))]
    rail = above.x - 30
    if boundary.aux is None:
        items += _route((x + PILL[0] / 2, y), rail, (ex - PILL[0] / 2, ey), "edge")
        items += _pill(ex, ey, f"X{k}", "what stage 0 to stage k-1 made")
    else:
        items += _route((x + PILL[0] / 2, y), rail, (ex - PILL[0] / 2, ey), "penalty")
        items += _pill(ex, ey, f"λ{k}", f"the auxiliary variable of boundary {k}")
    items += _pill(x, y, f"X{k}", f"boundary {k}, after {boundary.path or boundary.after}")
    items += _arrow(((ex, ey + PILL[1] / 2), (ex, TOP)))
    shapes = ", ".join(map(str, boundary.specs))
    items += [Text(x, y + 25, shorten(shapes, 40), "small", "middle"),
              Text(x, y + 39, size(boundary.nbytes), "small", "middle")]  # fmt: skip
    found: list[Item] = [Group(tuple(items), None, ("boundary", str(k - 1)))]
    if boundary.aux is not None:
        found.append(_auxnet(plan, boundary, columns, hues))
    return found


def _auxnet(plan: Plan, boundary: BoundaryPlan, columns: Sequence[StageColumn], hues: Sequence[int]) -> Group:
    aux, k = boundary.aux, boundary.index
    assert aux is not None
    from_input = aux.kind.startswith("recursive")
    (sx, sy), (ex, ey) = columns[0 if from_input else k - 1].enters, columns[k].enters
    x, y = columns[k].x - BETWEEN / 2 - AUX[0] / 2, 22.0
    middle = y + AUX[1] / 2
    lead = 8.0 if from_input else middle
    way: tuple[Point, ...] = ((sx, sy - PILL[1] / 2), (sx, lead), (x, middle))
    if from_input:
        way = ((sx, sy - PILL[1] / 2), (sx, lead), (x - 8, lead), (x - 8, middle), (x, middle))
    items: list[Item] = [*_arrow(way), *_arrow(((x + AUX[0], middle), (ex, middle), (ex, ey - PILL[1] / 2)))]
    title = f"AuxNet for boundary {k}: {aux.kind}, {100 * aux.share:.1f} % of stage {k - 1}, on rank {aux.rank}"
    items += [
        Rect(x, y, *AUX, "aux", title, 6),
        Text(x + AUX[0] / 2, y + 14, f"AuxNet {k - 1}", "label", "middle"),
        Text(x + AUX[0] / 2, y + 27, f"rank {aux.rank}, {100 * aux.share:.1f} % of stage", "small", "middle"),
    ]
    return Group(tuple(items), hues[aux.rank], ("aux", str(k - 1)))


def _pill(x: float, y: float, text: str, title: str) -> list[Item]:
    width, height = _width(text), PILL[1]
    return [
        Rect(x - width / 2, y - height / 2, width, height, "pill", title, height / 2),
        Text(x, y + 4, text, "label", "middle"),
    ]


def _width(text: str) -> float:
    return max(PILL[0], LETTER * len(text) + 16)


def _route(start: Point, rail: float, end: Point, role: str) -> list[Item]:
    """A line through the gap between two stages, up to the input of the second."""
    way = (start, (rail, start[1]), (rail, end[1]), end)
    return [*_arrow(way)] if role == "edge" else [Line(way, role)]


def _arrow(way: tuple[Point, ...]) -> list[Item]:
    (ax, ay), (bx, by) = way[-2:]
    length = ((bx - ax) ** 2 + (by - ay) ** 2) ** 0.5 or 1.0
    dx, dy = (bx - ax) / length, (by - ay) / length
    head = (
        (bx, by),
        (bx - 6 * dx + 3.2 * dy, by - 6 * dy - 3.2 * dx),
        (bx - 6 * dx - 3.2 * dy, by - 6 * dy + 3.2 * dx),
    )
    return [Line(way, "edge"), Line(head, "head", "closed")]


def _end(text: str, most: int) -> str:
    """The end of a module's path, which has the numbers of its block."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def shorten(text: str, most: int) -> str:
    """Drop the middle of a long name, which tells least."""
    if len(text) <= most:
        return text
    keep = most - 1
    return f"{text[: keep // 2]}…{text[-(keep - keep // 2) :]}"
