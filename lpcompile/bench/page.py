"""A bench as one self-contained page: tables, speedups as bars, the parts of a step, and simulated scaling."""

from __future__ import annotations

from html import escape

from lpcompile.bench.contenders.ways import LIMIT
from lpcompile.bench.results import Bench, BenchRow, LinkResults
from lpcompile.bench.table import (
    FAMILIES,
    PARTS,
    family,
    headline,
    link_cells,
    link_headers,
    link_headline,
    measured_table,
    not_alone,
    notes,
)
from lpcompile.bench.to_accuracy import HEADERS, accuracy_cells, accuracy_title
from lpcompile.draw import html
from lpcompile.draw.charts import TIMELINE, Bar, Curve, bars, chart
from lpcompile.draw.figure import Figure, svg
from lpcompile.draw.html import cell, legend, table

# parts of a step, by the colour classes of all pages
ROLES = {"forward": "forward", "backward": "backward", "aux": "auxiliary", "optimizer": "step", "transfer": "message",
         "python": "data", "wait": "wait"}  # fmt: skip
# families of contenders, by the same classes
COLOURS = {"plain": "step", "data parallel": "data", "torch's pipelines": "message", "exact": "forward",
           "delayed": "backward", "decoupled": "auxiliary"}  # fmt: skip


def page(found: Bench) -> str:
    """The whole page; every text that comes from outside is escaped."""
    measured = [r for r in found.rows if r.step]
    names, lines, _ = measured_table(found)
    start = [cell(f"{seconds:.2f} s") for seconds in found.start.values()]
    shown = legend(role for role in ROLES.values() if role != "data")
    return html.page(
        "bench",
        f"{found.request.model}, K = {found.request.K}: how fast",
        headline=escape(headline(found)),
        warning="".join(f'<p class="warning">{escape(text)}</p>' for text in not_alone(found)),
        measured=table(names, [_cells(r, line) for r, line in zip(found.rows, lines, strict=True)]),
        speedups=f'{svg(speedups(found))}<div class="legend">{_families(found)}</div>',
        times=f'{svg(times(measured))}<div class="legend">{shown}<span><i class="data"></i>Python</span></div>',
        links="".join(_link(one, found) for one in found.links) + _trained(found),
        start=table(list(found.start), [start]) if start else "",
        scaling=svg(scaling(found)) if found.scaling else "",
        notes="".join(f"<li>{escape(note)}</li>" for note in notes(found)),
    )


def _cells(row: BenchRow, line: list[str]) -> list[str]:
    if row.step:
        return [cell(text) for text in line]
    why = (row.why or "not measured").splitlines()[0]
    return [cell(line[0]), f'<td class="why" colspan="{len(line) - 1}">{escape(why)}</td>']


def _families(found: Bench) -> str:
    there = {family(r.name) for r in found.rows if r.rho is not None and r.name != LIMIT}
    return "".join(f'<span><i class="{COLOURS[name]}"></i>{escape(name)}</span>' for name in FAMILIES if name in there)


def _link(one: LinkResults, found: Bench) -> str:
    """The table of one rate, and each contender's step over its own without a limit as bars."""
    shares: list[Bar] = []
    for row in one.rows:
        free = found.row(row.name)
        if row.step and free is not None:
            share = free.step[0] / row.step[0]
            shares.append((row.name, [("forward", share, f"{share:.3f}")], f"{share:.2f}"))
    chart = svg(bars("speedup", shares, [("no limit", 1.0, "limit")], "share of its own speed without a limit"))
    rows = [[cell(text) for text in link_cells(row, one, found)] for row in one.rows]
    shown = f"<div class=wide>{table(link_headers(found), rows)}</div><div class=charts><div>{chart}</div></div>"
    return f"<h2>{escape(link_headline(one))}</h2>{shown}"


def _trained(found: Bench) -> str:
    """The table of trainings to an accuracy, and accuracy over seconds."""
    rows = [r for r in found.rows if r.curve]
    if not rows:
        return ""
    lines = [[cell(text) for text in accuracy_cells(r, found, r.name)] for r in rows]
    curves: list[Curve] = [(r.name, [s for _, s, _ in r.curve], [a for _, _, a in r.curve], "") for r in rows]
    drawn = svg(chart(curves, "test accuracy", "seconds", unit=""))
    shown = f"<div class=wide>{table(HEADERS, lines)}</div><div class=charts><div>{drawn}</div></div>"
    return f"<h2>{escape(accuracy_title(found))}</h2>{shown}"


def speedups(found: Bench) -> Figure:
    """ρ of all, with the measured limit across."""
    rows: list[Bar] = [
        (r.name, [(COLOURS[family(r.name)], r.rho, f"{family(r.name)}: ρ = {r.rho:.3f}")], f"{r.rho:.2f}")
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
    return chart(lines, "ρ", "stages", least=1, unit="", width=TIMELINE)
