"""Charts of several pages: curves named at their ends, bars of ranks, timelines of ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from lpcompile.draw.figure import Dot, Figure, Group, Item, Line, Rect, Text, hue_of

Curve = tuple[str, Sequence[float], Sequence[float], str]  # name, x, y, its role: "", "serial" or "limit"
Lane = Sequence[dict[str, Any]]
Bar = tuple[str, Sequence[tuple[str, float, str]], str]  # name, (role, length, title) of its parts, text behind it

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 36, 96, 22, 34
NAME, END, ROW, GAP = 84, 24, 20, 5  # pixels: left and right of a lane, its height, between lanes
TIMELINE = 1080
NUMBERED = ("forward", "backward", "auxiliary")
MIN_BOX_WIDTH = 0.4  # pixels
LETTER = 6.2  # average width in pixels of a letter at 11 px


def chart(
    lines: Sequence[Curve],
    above: str,
    below: str,
    least: float = 0.0,
    unit: str = " %",
    name: str = "chart",
    width: int = WIDTH,
    hues: Sequence[str] = (),
) -> Figure:
    """Curves named at their ends; `least` is the smallest distance of ticks on the x axis.

    hues: names that share out the colours, so that a curve has the same one on several charts; its own by default.
    """
    hues = hues or [label for label, _, _, _ in lines]
    right = min(width / 2, max(RIGHT, 12 + LETTER * max((len(label) for label, _, _, _ in lines), default=0)))
    top = max((v for _, _, y, _ in lines for v in y), default=1.0)
    low = min((v for _, _, y, _ in lines for v in y), default=0.0)
    most = max((v for _, x, _, _ in lines for v in x), default=1.0)
    y_ticks, x_ticks = ticks(low, top), ticks(0.0, most, least)
    bottom, ceiling, end = y_ticks[0], max(y_ticks[-1], top), max(x_ticks[-1], most)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (width - LEFT - right) * x / end
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - bottom) / (ceiling - bottom or 1.0)

    parts: list[Item] = [Text(0, 12, above), Text(width - right, HEIGHT - 4, below, anchor="end")]
    for tick in y_ticks:
        y = place(0, tick)[1]
        parts.append(Line(((LEFT, y), (width - right, y)), "grid"))
        parts.append(Text(LEFT - 6, y + 4, f"{tick:g}", anchor="end"))
    for tick in x_ticks:
        parts.append(Text(place(tick, bottom)[0], HEIGHT - BOTTOM + 15, f"{tick:g}", anchor="middle"))
    named = apart([place(x[-1], y[-1])[1] for _, x, y, _ in lines])
    for i, (label, xs, ys, role) in enumerate(lines):
        points = tuple(place(x, y) for x, y in zip(xs, ys, strict=True))
        shade = f" {role}-text" if role else ""
        dots = [
            Dot(x, y, 2.6, f"dot{shade}", f"{label}: {b:.4g}{unit} at {a:.4g}")
            for (x, y), a, b in zip(points, xs, ys, strict=True)
        ]
        text = Text(width - right + 8, named[i] + 4, label, f"name{shade}")
        parts.append(Group((Line(points, f"line {role}".strip()), *dots, text), hue_of(hues.index(label), len(hues))))
    return Figure(name, width, HEIGHT, tuple(parts))


def ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """About five round numbers from `low` (or just below) to `high`."""
    span = (high - low) or max(abs(high), 1.0)
    size = 10 ** math.floor(math.log10(span / 4))
    step = next(size * f for f in (1, 2, 5, 10) if span / (size * f) <= 5)
    step = max(step, least)
    first = math.floor(low / step)
    return [round(step * i, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)] or [low]


def apart(heights: Sequence[float], least: float = 13.0) -> list[float]:
    """The heights, moved down, and up again at the chart's edge, so that names do not overlap."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    found = list(heights)
    for before, i in pairwise(order):
        found[i] = max(found[i], found[before] + least)
    limit = HEIGHT - 4.0
    for i in reversed(order):
        found[i] = min(found[i], limit)
        limit = found[i] - least
    return found


def bars(name: str, rows: Sequence[Bar], marks: Sequence[tuple[str, float, str]], says: str) -> Figure:
    """One stacked bar per row; `marks` are (name, length, role) of lines across all bars."""
    most = max([sum(length for _, length, _ in parts) for _, parts, _ in rows] + [at for _, at, _ in marks] + [1e-12])
    behind = LETTER * max((len(text) for _, _, text in rows), default=0) + 8
    left = max(56.0, LETTER * max((len(label) for label, _, _ in rows), default=0) + 8)
    scale, top = (WIDTH - left - behind) / most, 30.0
    found: list[Item] = [Text(0, 12, says)]
    for i, (label, parts, text) in enumerate(rows):
        y, x = top + i * (ROW + GAP), left
        found.append(Text(0, y + 14, label))
        for role, length, title in parts:
            found.append(Rect(x, y, max(0.0, scale * length), ROW, f"box {role}", title))
            x += scale * length
        found.append(Text(WIDTH - behind + 8, y + 14, text))
    bottom = top + len(rows) * (ROW + GAP)
    free = 0.0
    for i, (label, at, role) in enumerate(sorted(marks, key=lambda m: m[1])):
        x = left + scale * at
        found.append(Line(((x, top - 4), (x, bottom + 2)), role))
        middle = max(x, free + LETTER * len(label) / 2 + 6 if i else 0.0)
        middle = min(middle, WIDTH - LETTER * len(label) / 2)
        found.append(Text(middle, bottom + 15, label, f"{role}-text" if role == "limit" else "label", "middle"))
        free = middle + LETTER * len(label) / 2
    return Figure(name, WIDTH, bottom + 22, tuple(found))


def timelines(methods: Sequence[tuple[str, Sequence[Lane]]], who: str = "worker", unit: str = "ms") -> Figure:
    """The lanes of all methods on one time scale."""
    most = max((e["end"] for _, lanes in methods for lane in lanes for e in lane), default=1.0) or 1.0
    scale = (TIMELINE - NAME - END) / most
    parts, y = list[Item](), 18.0
    for tick in ticks(0.0, most):
        parts.append(Text(NAME + scale * tick, 11, f"{tick:g} {unit}", anchor="middle"))
    for name, lanes in methods:
        parts.append(Text(0, y + 14, name, "title"))
        y += 20
        end = max((e["end"] for lane in lanes for e in lane), default=0.0)
        for rank, lane in enumerate(lanes):
            parts.append(Text(0, y + 14, f"{who} {rank}"))
            parts.append(Rect(NAME, y, scale * end, ROW, "lane"))
            for event in sorted(lane, key=lambda e: e["kind"] in NUMBERED):
                parts += box(event, y, scale, unit)
            y += ROW + GAP
        y += 8
    return Figure("timeline", TIMELINE, round(y), tuple(parts))


def box(event: dict[str, Any], y: float, scale: float, unit: str) -> list[Item]:
    """One instruction, with the number of its mini-batch where there is room."""
    kind, batch = event["kind"], event["batch"]
    x, width = NAME + scale * event["begin"], max(MIN_BOX_WIDTH, scale * (event["end"] - event["begin"]))
    pale = " other" if kind in NUMBERED and not batch else ""
    which = f", mini-batch {batch}" if batch else ""
    took = event["end"] - event["begin"]
    found: list[Item] = [Rect(x, y, width, ROW, f"box {kind}{pale}", f"{event['name']}{which}: {took:.2f} {unit}")]
    if kind in NUMBERED and batch and width > 9:
        found.append(Text(x + width / 2, y + 14, str(batch), "batch", "middle"))
    return found
