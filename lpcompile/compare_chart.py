"""The drawings of a comparison as SVG: lines over time, and lanes of workers. Colours are the page's own classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any

Line = tuple[str, Sequence[float], Sequence[float], bool]  # name, x, y, whether it is the serial one
Lane = Sequence[dict[str, Any]]

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 36, 96, 22, 34
NAME, END, ROW, GAP = 84, 24, 20, 5  # pixels left and right of a lane, of a lane, and between two
TIMELINE = 1080
NUMBERED = ("forward", "backward", "auxiliary")
LEAST = 0.4  # pixels of the narrowest box


def chart(lines: Sequence[Line], above: str, below: str, least: float = 0.0) -> str:
    """Lines with their names at their ends; numbers below are at least this far apart."""
    top = max((v for _, _, y, _ in lines for v in y), default=1.0)
    low = min((v for _, _, y, _ in lines for v in y), default=0.0)
    most = max((v for _, x, _, _ in lines for v in x), default=1.0)
    y_ticks, x_ticks = ticks(low, top), ticks(0.0, most, least)
    bottom, ceiling, end = y_ticks[0], max(y_ticks[-1], top), max(x_ticks[-1], most)

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / end
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - bottom) / (ceiling - bottom or 1.0)

    parts = [f'<text x="0" y="12">{escape(above)}</text>',
             f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(below)}</text>']  # fmt: skip
    for tick in y_ticks:
        y = place(0, tick)[1]
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x = place(tick, bottom)[0]
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 15}" text-anchor="middle">{tick:g}</text>')
    named = apart([place(x[-1], y[-1])[1] for _, x, y, _ in lines])
    for i, (name, xs, ys, serial) in enumerate(lines):
        points = [place(x, y) for x, y in zip(xs, ys, strict=True)]
        kind, hue = (" serial" if serial else ""), round(360 * i / max(1, len(lines)) + 205) % 360
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = "".join(
            f'<circle class="dot{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"><title>{escape(name)}: {b:.1f} % at {a:.4g}'
            f"</title></circle>"
            for (x, y), a, b in zip(points, xs, ys, strict=True)
        )
        text = f'<text class="name{kind}" x="{WIDTH - RIGHT + 8}" y="{named[i] + 4:.1f}">{escape(name)}</text>'
        parts.append(f'<g style="--hue:{hue}"><polyline class="line{kind}" points="{path}"/>{dots}{text}</g>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>'


def ticks(low: float, high: float, least: float = 0.0) -> list[float]:
    """Round numbers, about five of them, from at most `low` on."""
    span = (high - low) or max(abs(high), 1.0)
    size = 10 ** math.floor(math.log10(span / 4))
    step = next(size * f for f in (1, 2, 5, 10) if span / (size * f) <= 5)
    step = max(step, least)
    first = math.floor(low / step)
    return [round(step * i, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)] or [low]


def apart(heights: Sequence[float], least: float = 13.0) -> list[float]:
    """The heights, moved so that names do not cover each other: down, and up again where they would leave the chart."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    found = list(heights)
    for before, i in pairwise(order):
        found[i] = max(found[i], found[before] + least)
    limit = HEIGHT - 4.0
    for i in reversed(order):
        found[i] = min(found[i], limit)
        limit = found[i] - least
    return found


def timelines(methods: Sequence[tuple[str, Sequence[Lane]]]) -> str:
    """One drawing for all methods, on one scale of milliseconds."""
    most = max((e["end"] for _, lanes in methods for lane in lanes for e in lane), default=1.0)
    scale = (TIMELINE - NAME - END) / most
    parts, y = list[str](), 18.0
    for tick in ticks(0.0, most):
        parts.append(f'<text x="{NAME + scale * tick:.1f}" y="11" text-anchor="middle">{tick:g} ms</text>')
    for name, lanes in methods:
        parts.append(f'<text class="title" x="0" y="{y + 14:.1f}">{escape(name)}</text>')
        y += 20
        end = max((e["end"] for lane in lanes for e in lane), default=0.0)
        for rank, lane in enumerate(lanes):
            parts.append(f'<text x="0" y="{y + 14:.1f}">worker {rank}</text>')
            parts.append(f'<rect class="lane" x="{NAME}" y="{y:.1f}" width="{scale * end:.1f}" height="{ROW}"/>')
            parts += [box(e, y, scale) for e in sorted(lane, key=lambda e: e["kind"] in NUMBERED)]
            y += ROW + GAP
        y += 8
    body = "".join(parts)
    return f'<svg class="timeline" viewBox="0 0 {TIMELINE} {y:.0f}" width="{TIMELINE}" role="img">{body}</svg>'


def box(event: dict[str, Any], y: float, scale: float) -> str:
    """One instruction; what works on a mini-batch carries its number where there is room."""
    kind, batch = event["kind"], event["batch"]
    x, width = NAME + scale * event["begin"], max(LEAST, scale * (event["end"] - event["begin"]))
    pale = " other" if kind in NUMBERED and not batch else ""
    which = f", mini-batch {batch}" if batch else ""
    took = event["end"] - event["begin"]
    found = (
        f'<rect class="box {kind}{pale}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{ROW}">'
        f"<title>{escape(event['name'])}{which}: {took:.2f} ms</title></rect>"
    )
    if kind in NUMBERED and batch and width > 9:
        found += f'<text class="batch" x="{x + width / 2:.1f}" y="{y + 14:.1f}">{batch}</text>'
    return found
