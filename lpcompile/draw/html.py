"""The parts of all pages: template, style for light and dark, tables, legends. A page fetches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from lpcompile.draw.figure import css

KIND_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "auxiliary": "AuxNet, head, λ and κ",
    "step": "optimizer step",
    "wait": "waiting",
    "message": "send, receive",
    "data": "loading data",
}


def part(room: str, name: str) -> str:
    """A template, style or script packaged with a room of lpcompile."""
    return (files(f"lpcompile.{room}") / name).read_text(encoding="utf-8")


def page(name: str, title: str, more: str = "", **given: str) -> str:
    """The template of room `name` filled with `given`, which is HTML already. more: further CSS."""
    body = Template(part(name, f"{name}.html")).substitute(given)
    style = f"{css()}\n{part('draw', 'page.css')}{more}"
    return Template(part("draw", "page.html")).substitute(title=escape(title), style=style, body=body)


def legend(kinds: Iterable[str]) -> str:
    return "".join(f'<span><i class="{kind}"></i>{escape(KIND_NAMES[kind])}</span>' for kind in kinds)


def table(names: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """A table of cells that are HTML already, `<td>` included; see `cell`."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def cell(text: str) -> str:
    return f"<td>{escape(text)}</td>"
