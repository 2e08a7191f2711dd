"""A figure as PNG, drawn with Pillow, a dependency of torchvision."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import Any

from lpcompile.draw.figure import LIGHT, Dot, Figure, Line, Point, Rect, Text, flat, look

SCALE = 2
FONTS = (("DejaVuSans", "DejaVuSans-Bold"), ("LiberationSans-Regular", "LiberationSans-Bold"), ("Arial", "Arialbd"))
WORDS = str.maketrans({"λ": "lambda", "κ": "kappa", "ρ": "rho", "ψ": "psi", "×": "x", "→": "->", "·": "-", "µ": "u"})


def png(figure: Figure, scale: int = SCALE) -> bytes:
    from PIL import Image, ImageDraw

    size = (math.ceil(figure.width * scale), math.ceil(figure.height * scale))
    image = Image.new("RGB", size, LIGHT["page"])
    draw = ImageDraw.Draw(image)
    for item, hue in flat(figure.items):
        _draw(draw, item, look(item.role, hue, isinstance(item, Text)), scale)
    found = io.BytesIO()
    image.save(found, "png", optimize=True)
    return found.getvalue()


def _draw(draw: Any, item: Rect | Line | Dot | Text, style: dict[str, str], scale: int) -> None:
    opacity = float(style.get("opacity", 1))
    fill, stroke = (_paint(style.get(name, "none"), opacity) for name in ("fill", "stroke"))
    width = max(1, round(scale * float(style.get("stroke-width", 1))))
    if isinstance(item, Text):
        _text(draw, item, style, fill, scale)
    elif isinstance(item, Rect):
        x, y = scale * item.x, scale * item.y
        far = (max(x, x + scale * item.width - 1), max(y, y + scale * item.height - 1))
        draw.rounded_rectangle((x, y, *far), scale * item.radius, fill, stroke, width if stroke else 0)
    elif isinstance(item, Dot):
        draw.circle((scale * item.x, scale * item.y), scale * item.radius, fill)
    elif item.kind == "closed":
        draw.polygon([(scale * x, scale * y) for x, y in item.points], fill, stroke)
    else:
        points = [(scale * x, scale * y) for x, y in (_bend(item.points) if item.kind == "curve" else item.points)]
        dash = [scale * float(n) for n in style.get("stroke-dasharray", "").split()]
        for piece in _dashes(points, dash) if dash else [points]:
            draw.line(piece, stroke, width)


def _paint(colour: str, opacity: float) -> tuple[int, int, int] | None:
    """The colour blended with the white page, instead of an alpha channel."""
    if colour == "none":
        return None
    red, green, blue = (round(255 + opacity * (int(colour[i : i + 2], 16) - 255)) for i in (1, 3, 5))
    return red, green, blue


def _text(draw: Any, item: Text, style: dict[str, str], fill: Any, scale: int) -> None:
    from PIL import ImageFont

    size, text = scale * float(style["font-size"].removesuffix("px")), item.text
    font = _font(size, "font-weight" in style)
    if font is None:  # Pillow's own font has no Greek
        font, text = ImageFont.load_default(size), text.translate(WORDS)
    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[item.anchor]
    draw.text((scale * item.x, scale * item.y), text, fill, font, anchor)


@cache
def _font(size: float, bold: bool) -> Any:
    from PIL import ImageFont

    for plain, heavy in FONTS:
        with suppress(OSError):
            return ImageFont.truetype(f"{heavy if bold else plain}.ttf", size)
    return None


def _bend(points: Sequence[Point]) -> list[Point]:
    def at(t: float) -> Point:
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        return tuple(sum(w * p[i] for w, p in zip(weights, points, strict=True)) for i in (0, 1))  # type: ignore[return-value]

    return [at(i / 24) for i in range(25)]


def _dashes(points: Sequence[Point], dash: Sequence[float]) -> Iterator[list[Point]]:
    """The drawn pieces of a dashed line; `dash` alternates drawn and skipped lengths."""
    left, drawn, turn = dash[0], True, 0
    for (ax, ay), (bx, by) in pairwise(points):
        length, done = math.hypot(bx - ax, by - ay), 0.0
        while length - done > 1e-9:
            step = min(left, length - done)
            ends = [(ax + (bx - ax) * t / length, ay + (by - ay) * t / length) for t in (done, done + step)]
            if drawn:
                yield ends
            done, left = done + step, left - step
            if left <= 1e-9:
                turn, drawn = turn + 1, not drawn
                left = dash[turn % len(dash)]
