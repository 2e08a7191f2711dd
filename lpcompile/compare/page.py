"""A comparison as one self-contained page: tables, accuracy over time, and timelines drawn from traces."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from lpcompile.compare.properties import NAMES
from lpcompile.compare.results import Comparison, MethodRow
from lpcompile.compare.table import headline, measured_table, not_alone, notes
from lpcompile.compare.timeline import SHOWN
from lpcompile.core.trace import KINDS
from lpcompile.draw import html
from lpcompile.draw.charts import chart, timelines
from lpcompile.draw.figure import svg
from lpcompile.draw.html import KIND_NAMES, cell, legend, table


def page(found: Comparison) -> str:
    """The whole page; every text that comes from outside is escaped."""
    rows = [r for r in (found.serial, *found.rows) if r is not None]
    measured = [r for r in rows if r.seconds]
    names, cells_ = measured_table(found)
    lines = [(_name(r), [100 * a for a in r.accuracy], _spent(r), r.method) for r in measured]
    role = {"serial": "serial"}
    over_time = chart([(n, s, a, role.get(m, "")) for n, a, s, m in lines], "test accuracy, %", "seconds of training")
    by_epoch = [(n, [float(e + 1) for e in range(len(a))], a, role.get(m, "")) for n, a, _, m in lines]
    epochs = chart(by_epoch, "test accuracy, %", "epochs", least=1)
    title = f"{found.request.model} on {found.request.data}, K = {found.request.K}"
    return html.page(
        "compare",
        title,
        headline=escape(headline(found)),
        warning="".join(f'<p class="warning">{escape(text)}</p>' for text in not_alone(found)),
        measured=table(names, [_cells(r, line) for r, line in zip(rows, cells_, strict=True)]),
        charts=f"<div>{svg(over_time)}</div><div>{svg(epochs)}</div>",
        about_lanes=escape(_about_lanes(measured)),
        legend=legend(kind for kind in KIND_NAMES if kind in KINDS),
        lanes=svg(timelines([(_name(r), r.timeline) for r in measured if any(r.timeline)])),
        marks=_marks([r for r in found.rows if r.marks]),
        notes="".join(f"<li>{escape(note)}</li>" for note in notes(found)),
    )


def _about_lanes(rows: Sequence[MethodRow]) -> str:
    text = f"""From the middle of the last epoch, numbered 1 to {SHOWN}; what is paler belongs to the batches before and
        after. All on one scale of time. Hover for details."""
    drawn = [r.method for r in rows if any(e["name"].startswith("draw ") for lane in r.timeline for e in lane)]
    return text + (f" Of {', '.join(drawn)} each worker counts what it draws from its buffer." if drawn else "")


def _name(row: MethodRow) -> str:
    return "BP on one core" if row.method == "serial" else row.method


def _spent(row: MethodRow) -> list[float]:
    """Seconds of training until the end of each epoch."""
    return [sum(row.seconds[: i + 1]) for i in range(len(row.seconds))]


def _cells(row: MethodRow, line: list[str]) -> list[str]:
    if row.seconds:
        return [cell(text) for text in line]
    why = (row.why or "not measured").splitlines()[0]
    return [cell(row.method), f'<td class="why" colspan="{len(line) - 1}">{escape(why)}</td>']


def _marks(rows: Sequence[MethodRow]) -> str:
    lines = []
    for row in rows:
        line = [f"<td>{escape(row.method)}</td>"]
        for name in NAMES:
            sign, why = row.marks[name]
            line.append(f'<td class="{"yes" if sign == "✓" else "no"}" title="{escape(why)}">{sign}</td>')
        lines.append(line)
    return table(["method", *NAMES], lines, "marks")
