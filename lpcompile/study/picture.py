"""The picture of a study: points over plain training against speedup, a panel for each K, a colour for each method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from lpcompile.draw.charts import LETTER, apart, ticks
from lpcompile.draw.figure import Dot, Figure, Group, Item, Line, Text, hue_of
from lpcompile.study.answers import Merged, at, over_models, stages
from lpcompile.study.summary import StudyRow

PANEL, HEIGHT = 440, 300  # pixels
LEFT, TOP, BOTTOM = 34, 40, 34
A_ROW = 2  # panels
LONGEST = 36  # letters of a label
POINTS = (-100, -50, -20, -10, -5, -2, -1, 0, 1, 2, 5, 10, 20, 50)  # ticks of the y axis
ABOVE = "points over plain training, mean over models ± deviation over seeds; root scale"


def picture(rows: Sequence[StudyRow], methods: Sequence[str] = ()) -> Figure:
    """Dots are means over models; whiskers the standard deviation over seeds. methods: only these, by name."""
    panels = {K: [m for m in over_models(at(rows, K)) if not methods or m.entry in methods] for K in stages(rows)}
    panels = {K: merged for K, merged in panels.items() if merged}
    names = list(dict.fromkeys(m.entry for merged in panels.values() for m in merged))
    low, high = _range([m for merged in panels.values() for m in merged])
    items: list[Item] = [Text(0, 12, ABOVE)]
    for number, (K, merged) in enumerate(panels.items()):
        x, y = number % A_ROW * PANEL, number // A_ROW * HEIGHT
        items += [_moved(item, x, y) for item in _panel(K, merged, names, low, high)]
    wide, tall = min(len(panels), A_ROW), math.ceil(len(panels) / A_ROW)
    return Figure("frontier", max(wide, 1) * PANEL, max(tall, 1) * HEIGHT, tuple(items))


def _spread(one: Merged) -> float:
    return statistics.stdev(one.gaps.values()) if len(one.gaps) > 1 else 0.0


def _range(merged: Sequence[Merged]) -> tuple[float, float]:
    """The lowest and the highest tick: all panels have the same axis."""
    least = min([0.0, *(m.gap - _spread(m) for m in merged)])
    most = max([0.0, *(m.gap + _spread(m) for m in merged)])
    return max(p for p in POINTS if p <= least or p == POINTS[0]), min(
        p for p in POINTS if p >= most or p == POINTS[-1]
    )


def _root(points: float) -> float:
    """Small differences near plain training are as visible as large ones far from it."""
    return math.copysign(math.sqrt(abs(points)), points)


def _panel(K: int, merged: Sequence[Merged], names: Sequence[str], low: float, high: float) -> list[Item]:
    labels = [_label(m) for m in merged]
    right = 34 + LETTER * max(len(label) for label in labels)
    first, last = min(1.0, *(m.rho for m in merged)), max(1.5, *(m.rho for m in merged))
    marks = [mark for mark in ticks(first, last) if mark >= first]

    def place(rho: float, points: float) -> tuple[float, float]:
        up = (_root(points) - _root(low)) / (_root(high) - _root(low) or 1.0)
        across = (rho - first) / (last - first)
        return LEFT + (PANEL - LEFT - right) * across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * up

    seeds = f"{merged[0].asked} seed{'s' if merged[0].asked > 1 else ''}"
    items: list[Item] = [Text(LEFT, TOP - 10, f"K = {K}, {seeds}", "title")]
    for tick in (p for p in POINTS if low <= p <= high):
        y = place(first, tick)[1]
        items.append(Line(((LEFT, y), (PANEL - right, y)), "bound" if tick == 0 else "grid"))
        items.append(Text(LEFT - 6, y + 4, f"{tick:+d}" if tick else "0", anchor="end"))
    for mark in marks:
        items.append(Text(place(mark, low)[0], HEIGHT - BOTTOM + 15, f"{mark:g}", anchor="middle"))
    items.append(Text(PANEL - right, HEIGHT - 4, "speedup ρ; 1: plain training", anchor="end"))
    named = apart([place(m.rho, m.gap)[1] for m in merged])
    for m, label, height in zip(merged, labels, named, strict=True):
        x, y = place(m.rho, m.gap)
        ends = tuple(place(m.rho, m.gap + d * _spread(m)) for d in (-1, 1))
        edge = Line(((x, y), (PANEL - right + 12, height)), "edge skip")
        title = f"{m.entry}: {m.gap:+.2f} ± {_spread(m):.2f} points at ρ = {m.rho:.2f}"
        shown = (Line(ends, "line"), Dot(x, y, 3.2, "dot", title), Text(PANEL - right + 15, height + 4, label, "name"))
        items += [edge, Group(shown, hue_of(names.index(m.entry), len(names)))]
    return items


def _label(one: Merged) -> str:
    after = f" {one.gap:+.1f}" + (f" ({one.caveat})" if one.caveat else "")
    room = LONGEST - len(after)
    return (one.entry if len(one.entry) <= room else one.entry[: room - 1] + "…") + after


def _moved(item: Item, x: float, y: float) -> Item:
    if isinstance(item, Group):
        return Group(tuple(_moved(one, x, y) for one in item.items), item.hue, item.data)
    if isinstance(item, Line):
        return Line(tuple((a + x, b + y) for a, b in item.points), item.role, item.kind)
    if isinstance(item, Dot):
        return Dot(item.x + x, item.y + y, item.radius, item.role, item.title)
    assert isinstance(item, Text)
    return Text(item.x + x, item.y + y, item.text, item.role, item.anchor)
