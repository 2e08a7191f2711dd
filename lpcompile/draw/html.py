"""The parts of all pages: template, style for light and dark, tables, legends. A page fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

from lpcompile.core.tables import BAR
from lpcompile.draw.figure import css

NUMBER = "<td class=num>"
# "604,736", "18.7 ± 0.3 ms", "9.5 %", "1.73 (1.43-1.79)", "25.8 MiB / 11.2 MiB", "–"
FIGURE = r"[-+−]?\d[\d.,]*(e[-+]?\d+)?(?![\w]) ?(%|×|ms|s|B|[KMGT]iB|[MGT]?FLOPs?)?( \(over budget\))?"
AMOUNT = re.compile(rf"–|{FIGURE}( ?(±|-|/|\() ?{FIGURE}\)?)*")
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
    """A table of cells that are HTML already, `<td>` included; see `cell`. Headers are aligned like their columns."""
    full = [row for row in rows if len(row) == len(names)]  # others have a cell over several columns
    right = [any(row[i].startswith(NUMBER) for row in full) for i in range(len(names))]
    heads = zip(names, right, strict=True)
    head = "".join(f"<th{' class=num' if numeric else ''}>{escape(name)}</th>" for name, numeric in heads)
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def cell(text: str) -> str:
    """A table cell: numbers and amounts are right-aligned, bars of characters become drawn bars, all else is text."""
    if text and not text.strip("█"):
        return f'<td class=bar><i style="width:{100 * min(len(text), BAR) / BAR:.0f}%"></i></td>'
    return f"{NUMBER if AMOUNT.fullmatch(text) else '<td>'}{escape(text)}</td>"
