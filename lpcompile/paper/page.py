"""All tables on one self-contained page, with the learning curves that the paper's figures show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lpcompile.core.trace import KINDS
from lpcompile.draw import html
from lpcompile.draw.charts import Curve, chart, timelines
from lpcompile.draw.figure import svg
from lpcompile.paper import schedules
from lpcompile.paper.printed import BY_KEY
from lpcompile.paper.results import Result
from lpcompile.paper.schedules import Scheduled
from lpcompile.paper.tables import HEADERS, OTHERS, cells, ended, left_out, sentence, summary, title
from lpcompile.paper.trends import reading, verdict

CURVES = {  # what is above each, and the unit of its values
    "train loss": ("training loss of the serial model", ""),
    "violation": ("violation |λ - X|² / |X|²", ""),
    "accuracy": ("test accuracy, %", " %"),
}
LARGEST = 10.0  # of a loss or a violation on a chart: a run that diverged would flatten all others


def page(tables: Mapping[str, Sequence[Result]], about: str, derived: Mapping[str, Sequence[Scheduled]]) -> str:
    names, rows = summary(tables)
    return html.page(
        "paper",
        "The paper's tables again",
        about=escape(about),
        summary=html.table(names, [[html.cell(row[0]), *map(_words, row[1:])] for row in rows]),
        derived="\n".join(_derived(key, found) for key, found in derived.items()),
        tables="\n".join(_section(key, found) for key, found in tables.items()),
        others=escape(OTHERS.replace("`", "")),
    )  # fmt: skip


def _derived(key: str, found: Sequence[Scheduled]) -> str:
    """Table 1 or 2, the latter with its timelines."""
    names, rows = schedules.table(key, found)
    about = f"<h2>{escape(schedules.TITLES[key])}</h2><p>{escape(schedules.said(key, found))}</p>"
    whole = f'{about}<div class="wide">{html.table(names, [[html.cell(text) for text in row] for row in rows])}</div>'
    if key == "1":
        return whole
    legend = html.legend(kind for kind in html.KIND_NAMES if kind in KINDS)
    lanes = svg(timelines(schedules.drawn(found)))
    return f'{whole}<div class="legend">{legend}</div><div class="wide">{lanes}</div>'


def _section(key: str, found: Sequence[Result]) -> str:
    rows = [[*map(html.cell, cells(r)[:-1]), _words(cells(r)[-1])] for r in found]
    charts = "".join(svg(figure) for figure in _charts(found))
    paper = f"<p>Paper: {escape(BY_KEY[key].trend)}.</p>" if key in BY_KEY else ""
    here = f"Here it {sentence(verdict(key, found))}" if key in BY_KEY else f"Here, {verdict(key, found)}."
    missing, why = left_out(key, found), ended(reading(key, found))
    more = f"<p>Not run at this scale: {escape(missing)}.</p>" if missing else ""
    return (
        f"<h2>{escape(title(key))}</h2>{paper}<p><b>{escape(here)}</b> {escape(why)}</p>"
        f'<div class="wide">{html.table(HEADERS, rows)}</div>{more}<div class="charts">{charts}</div>'
    )


def _words(text: str) -> str:
    """A cell that takes several lines."""
    return f'<td class="why">{escape(text)}</td>'


def _charts(found: Sequence[Result]) -> list[Any]:
    figures, rows = [], [r.name for r in found]
    for name, (above, unit) in CURVES.items():
        lines: list[Curve] = []
        largest = math.inf if name == "accuracy" else LARGEST
        for r in found:
            xs, ys = r.curve(name)
            shown = [(x, min(y, largest)) for x, y in zip(xs, ys, strict=True) if y == y]
            if any(y > largest for y in ys):
                above = f"{CURVES[name][0]}; larger ones drawn at {largest:g}"
            if shown:
                role = "serial" if r.plain else ""
                lines.append((r.name, [x for x, _ in shown], [y for _, y in shown], role))
        if lines:
            figures.append(chart(lines, above, "epochs", least=1, unit=unit, name=name.replace(" ", "-"), hues=rows))
    return figures
