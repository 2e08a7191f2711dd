"""A bench as one self-contained page: tables, speedups as bars, the parts of a step, and simulated scaling."""

from __future__ import annotations

from html import escape

from lpcompile.bench.contenders import LIMIT
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.bench.table import PARTS, called, cells, headers, headline, notes
from lpcompile.draw import html
from lpcompile.draw.charts import Bar, Curve, bars, chart
from lpcompile.draw.figure import Figure, svg
from lpcompile.draw.html import cell, legend, table

# parts of a step, by the colour classes of all pages
ROLES = {"forward": "forward", "backward": "backward", "aux": "auxiliary", "optimizer": "step", "transfer": "message",
         "python": "data", "wait": "wait"}  # fmt: skip


def page(found: Bench) -> str:
    """The whole page; every text that comes from outside is escaped."""
    measured = [r for r in found.rows if r.step]
    start = [cell(f"{seconds:.2f} s") for seconds in found.start.values()]
    shown = legend(role for role in ROLES.values() if role != "data")
    return html.page(
        "bench",
        f"{found.request.model}, K = {found.request.K}: how fast",
        headline=escape(headline(found)),
        measured=table(headers(), [_cells(r, found) for r in found.rows]),
        legend=f'{shown}<span><i class="data"></i>Python</span>',
        charts=svg(speedups(found)) + svg(times(measured)),
        start=table(list(found.start), [start]) if start else "",
        scaling=svg(scaling(found)) if found.scaling else "",
        notes="".join(f"<li>{escape(note)}</li>" for note in notes(found)),
    )


def _cells(row: BenchRow, found: Bench) -> list[str]:
    if row.step:
        return [cell(text) for text in cells(row, found)]
    name, why = called(row.name, found.request.K), (row.why or "not measured").splitlines()[0]
    return [cell(name), f'<td class="why" colspan="8">{escape(why)}</td>']


def speedups(found: Bench) -> Figure:
    """ρ of all, with the measured limit across."""
    rows: list[Bar] = [
        (r.name, [("forward", r.rho, f"ρ = {r.rho:.3f}")], f"{r.rho:.2f}")
        for r in found.rows
        if r.rho is not None and r.name != LIMIT
    ]
    limit = found.row(LIMIT)
    marks = [(f"limit {limit.rho:.2f}", limit.rho, "limit")] if limit is not None and limit.rho is not None else []
    return bars("speedup", rows, marks, "ρ: plain training's step over this one's")


def times(measured: list[BenchRow]) -> Figure:
    """ms of a step on every rank, by part."""
    rows: list[Bar] = []
    for row in measured:
        for rank, seen in enumerate(row.ranks):
            parts = [(ROLES[p], seen["parts"].get(p, 0.0), f"{p}: {seen['parts'].get(p, 0.0):.1f} ms") for p in PARTS]
            rows.append((f"{row.name} {rank}" if len(row.ranks) > 1 else row.name, parts, ""))
    return bars("time", rows, [], "ms of a step, by rank")


def scaling(found: Bench) -> Figure:
    stages = [float(line["K"]) for line in found.scaling]
    lines: list[Curve] = [("limit", stages, stages, "limit")]
    for method in [m for m in found.scaling[0] if m != "K"]:
        there = [line for line in found.scaling if method in line]
        lines.append((method, [float(s["K"]) for s in there], [s[method] for s in there], ""))
    return chart(lines, "ρ", "stages", least=1, unit="")
