"""Figures as data: one drawing becomes SVG inside a page, a standalone SVG file, or PNG.

>>> figure = Figure("load", 200, 40, (Rect(0, 0, 120, 20, "box forward", "forward: 12 ms"), Text(0, 36, "rank 0")))
>>> svg(figure)                     # for a page: colours by class, light and dark
>>> svg_file(figure), png(figure)   # for a file: the light colours written out

A role is one or more classes of `STYLES`. `tone`, `tint` and `wash` are three shades of an item's hue.
"""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

LIGHT = {
    "page": "#ffffff", "ink": "#1d2430", "faint": "#667085", "rule": "#e3e6eb", "panel": "#f7f8fa", "on": "#ffffff",
    "forward": "#4c7fd9", "backward": "#2f9e7c", "auxiliary": "#e0892f", "wait": "#dfe3e9", "message": "#a259c4",
    "step": "#1d2430", "data": "#c2a878", "yes": "#1f7a4d", "no": "#9aa2af", "limit": "#c9372c",
}  # fmt: skip
DARK = {
    "page": "#14171c", "ink": "#e4e8ee", "faint": "#98a2b3", "rule": "#2c323b", "panel": "#1b1f26", "on": "#10131a",
    "forward": "#6f9df0", "backward": "#45b893", "auxiliary": "#eda04f", "wait": "#2b313a", "message": "#bd86d9",
    "step": "#e4e8ee", "data": "#a08a5f", "yes": "#5fd39b", "no": "#667085", "limit": "#f2766b",
}  # fmt: skip
# saturation and lightness in %, light and dark
SHADES = {
    "tone": ((65, 42), (65, 66)),
    "tint": ((65, 89), (34, 25)),
    "wash": ((60, 97), (28, 14)),
}

# Later classes override earlier ones, as in CSS.
STYLES: dict[str, dict[str, str]] = {
    "text": {"fill": "faint", "font-size": "11px"},
    "grid": {"stroke": "rule", "fill": "none"},
    "lane": {"fill": "panel"},
    "box": {"stroke": "page", "stroke-width": "0.6"},
    "forward": {"fill": "forward"},
    "backward": {"fill": "backward"},
    "auxiliary": {"fill": "auxiliary"},
    "wait": {"fill": "wait"},
    "message": {"fill": "message"},
    "step": {"fill": "step"},
    "data": {"fill": "data"},
    "other": {"opacity": "0.28"},
    "title": {"fill": "ink", "font-size": "13px", "font-weight": "600"},
    "batch": {"fill": "on", "font-weight": "600", "pointer-events": "none"},
    "line": {"fill": "none", "stroke": "tone", "stroke-width": "1.8"},
    "dot": {"fill": "tone"},
    "name": {"fill": "tone"},
    "serial": {"stroke": "ink", "stroke-width": "2.4", "stroke-dasharray": "5 4"},
    "serial-text": {"fill": "ink", "stroke": "none"},
    "limit": {"stroke": "limit", "stroke-width": "1.6", "stroke-dasharray": "5 4", "fill": "none"},
    "limit-text": {"fill": "limit"},
    "bound": {"stroke": "ink", "stroke-width": "1.2", "fill": "none"},
    "stage": {"fill": "wash", "stroke": "tint"},
    "unit": {"fill": "tint", "stroke": "tone", "stroke-width": "0.8"},
    "share": {"fill": "tone"},
    "label": {"fill": "ink"},
    "small": {"font-size": "10px"},
    "edge": {"fill": "none", "stroke": "faint", "stroke-width": "1.1"},
    "skip": {"opacity": "0.6"},
    "penalty": {"fill": "none", "stroke": "auxiliary", "stroke-width": "1.4", "stroke-dasharray": "4 3"},
    "head": {"fill": "faint"},
    "pill": {"fill": "page", "stroke": "faint"},
    "aux": {"fill": "tint", "stroke": "auxiliary", "stroke-width": "1.6"},
}


@dataclass(frozen=True)
class Rect:
    x: float
    y: float
    width: float
    height: float
    role: str
    title: str = ""
    radius: float = 0


@dataclass(frozen=True)
class Line:
    """A line through its points; a curve has four (Bézier), a closed line is a filled shape."""

    points: tuple[Point, ...]
    role: str
    kind: str = "open"  # or "curve", "closed"


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    radius: float
    role: str
    title: str = ""


@dataclass(frozen=True)
class Text:
    x: float
    y: float  # baseline
    text: str
    role: str = ""
    anchor: str = "start"  # or "middle", "end"


@dataclass(frozen=True)
class Group:
    """Items of one hue; `data` becomes a data attribute that a page's script finds."""

    items: tuple[Item, ...]
    hue: int | None = None
    data: tuple[str, str] | None = None  # ("unit", "12")


Item = Rect | Line | Dot | Text | Group


@dataclass(frozen=True)
class Figure:
    name: str
    width: float
    height: float
    items: tuple[Item, ...]


def css() -> str:
    """The style sheet: colours, light and dark, and one rule per class."""
    rules = [_root(LIGHT, 0), f"@media (prefers-color-scheme: dark) {{ {_root(DARK, 1)} }}"]
    for word, style in STYLES.items():
        rule = "; ".join(f"{name}: {_variable(value)}" for name, value in style.items())
        selector = "svg text" if word == "text" else f".{word}"
        if word in ("forward", "backward", "auxiliary", "wait", "message", "step", "data"):  # also in legends
            rule += f"; background: var(--{word})"
        rules.append(f"{selector} {{ {rule} }}")
    return "\n".join(rules)


def _root(palette: dict[str, str], which: int) -> str:
    found = [f"--{name}: {colour}" for name, colour in palette.items()]
    found += [f"--{name}: {shade[which][0]}% {shade[which][1]}%" for name, shade in SHADES.items()]
    return f":root {{ {'; '.join(found)}; }}"


def _variable(value: str) -> str:
    if value in SHADES:
        return f"hsl(var(--hue) var(--{value}))"
    return f"var(--{value})" if value in LIGHT else value


def hue_of(index: int, count: int) -> int:
    """Hues evenly spread over the circle, from blue."""
    return round(360 * index / max(1, count) + 215) % 360


def svg(figure: Figure) -> str:
    """SVG for a page that includes `css()`."""
    body = "".join(_element(item, None, False) for item in figure.items)
    role = "group" if any(isinstance(item, Group) and item.data for item in figure.items) else "img"
    return (
        f'<svg class="{figure.name}" viewBox="0 0 {figure.width:g} {figure.height:g}" width="{figure.width:g}" '
        f'role="{role}" aria-label="{escape(figure.name)}">{body}</svg>'
    )


def svg_file(figure: Figure) -> str:
    """A standalone file with the light colours written out, for any viewer."""
    body = "\n".join(_element(item, None, True) for item in figure.items)
    size = f'width="{figure.width:g}" height="{figure.height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {figure.width:g} {figure.height:g}" {size} '
        f'font-family="system-ui, sans-serif">\n<rect {size} fill="{LIGHT["page"]}"/>\n{body}\n</svg>\n'
    )


def look(role: str, hue: int | None, text: bool = False) -> dict[str, str]:
    """The style of a role on a light page, all colours as #rrggbb."""
    words = {*role.split(), *(["text"] if text else [])}
    found: dict[str, str] = {}
    for word, style in STYLES.items():
        if word in words:
            found |= {name: _colour(value, hue) for name, value in style.items()}
    return found


def _colour(value: str, hue: int | None) -> str:
    if value in SHADES:
        saturation, lightness = SHADES[value][0]
        rgb = colorsys.hls_to_rgb((hue or 0) / 360, lightness / 100, saturation / 100)
        return "#" + "".join(f"{round(255 * c):02x}" for c in rgb)
    return LIGHT.get(value, value)


def _element(item: Item, hue: int | None, alone: bool) -> str:
    if isinstance(item, Group):
        inner = "".join(_element(i, hue if item.hue is None else item.hue, alone) for i in item.items)
        if alone:
            return f"<g>{inner}</g>"
        style = "" if item.hue is None else f' style="--hue:{item.hue}"'
        name = "" if item.data is None else f' data-{item.data[0]}="{escape(item.data[1])}" tabindex="0" role="button"'
        return f"<g{style}{name}>{inner}</g>"
    text = isinstance(item, Text)
    how = "".join(f' {n}="{v}"' for n, v in look(item.role, hue, text).items()) if alone else _class(item.role)
    if isinstance(item, Text):
        anchor = "" if item.anchor == "start" else f' text-anchor="{item.anchor}"'
        return f'<text{how} x="{item.x:.1f}" y="{item.y:.1f}"{anchor}>{escape(item.text)}</text>'
    if isinstance(item, Line):
        return _line(item, how)
    title = f"<title>{escape(item.title)}</title>" if item.title else ""
    if isinstance(item, Dot):
        return f'<circle{how} cx="{item.x:.2f}" cy="{item.y:.2f}" r="{item.radius:g}">{title}</circle>'
    radius = f' rx="{item.radius:g}"' if item.radius else ""
    size = f'x="{item.x:.2f}" y="{item.y:.2f}" width="{item.width:.2f}" height="{item.height:.2f}"'
    return f"<rect{how} {size}{radius}>{title}</rect>"


def _class(role: str) -> str:
    return f' class="{role}"' if role else ""


def _line(item: Line, how: str) -> str:
    points = [f"{x:.1f},{y:.1f}" for x, y in item.points]
    if item.kind == "curve":
        return f'<path{how} d="M{points[0]} C{" ".join(points[1:])}"/>'
    return f'<{"polygon" if item.kind == "closed" else "polyline"}{how} points="{" ".join(points)}"/>'


def flat(items: Sequence[Item], hue: int | None = None) -> Iterator[tuple[Rect | Line | Dot | Text, int | None]]:
    """The items without their groups, in drawing order, each with its hue."""
    for item in items:
        if isinstance(item, Group):
            yield from flat(item.items, hue if item.hue is None else item.hue)
        else:
            yield item, hue
