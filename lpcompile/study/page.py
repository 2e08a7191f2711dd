"""A study as one self-contained page: what to take, all rows, frontiers, accuracy over epochs and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from lpcompile.draw import html
from lpcompile.draw.charts import Curve, chart
from lpcompile.draw.figure import Figure, svg
from lpcompile.draw.html import cell, table
from lpcompile.study.answers import HEADERS, NOTES, answers, not_everywhere
from lpcompile.study.picture import picture
from lpcompile.study.summary import StudyRow, most_seeds, notes, plus_minus, seeds_text


def page(rows: Sequence[StudyRow], found: Sequence[Mapping[str, Any]]) -> str:
    """The whole page; every text that comes from outside is escaped."""
    parts = []
    for model, group in groupby(rows, key=lambda row: row.model):
        of = [row for row in group if row.accuracy]
        figures = [frontier(of, model)] if any(row.rho and not row.plain for row in of) else []
        for K in sorted({row.K for row in of if not row.plain}):
            shown = [row for row in of if row.plain or row.K == K]
            timed = [row for row in shown if row.step]
            figures += [over_epochs(shown, K), *([over_time(timed, K)] if len(timed) > 1 else [])]
        parts.append(f'<h2>{escape(model)}</h2>\n<div class="charts">{"".join(map(svg, figures))}</div>')
    taken = table(HEADERS, [_plain_cells(line) for line in answers(rows)])
    over_all = svg(picture(rows)) if answers(rows) else ""
    most = most_seeds(rows)
    headers = ["model", "K", "method", "accuracy, %", "over plain", "ρ", "seeds", "said"]
    return html.page(
        "study",
        "Accuracy against time",
        headline=escape(headline(found)),
        answers=taken,
        rows=table(headers, [_cells(row, most) for row in rows]),
        figures="\n".join([over_all, *parts]),
        notes="".join(f"<li>{escape(note)}</li>" for note in [*NOTES, *not_everywhere(rows), *notes(rows)]),
    )


def _plain_cells(line: Sequence[str]) -> list[str]:
    return [cell(text) for text in line]


def headline(found: Sequence[Mapping[str, Any]]) -> str:
    """Where the numbers come from."""

    def of(name: str) -> str:
        return ", ".join(sorted({str(r.get(name, "unknown")) for r in found}))

    return f"{len(found)} runs; commit {of('commit')}; {of('machine')}; torch {of('torch')}; {of('date')}"


def _cells(row: StudyRow, most: int) -> list[str]:
    accuracy = plus_minus(row.accuracy, ".2f") if row.accuracy else "failed"
    over = plus_minus(list(row.gaps.values()), "+.2f") if row.gaps else ""
    name = f"<td><b>{escape(row.entry)}</b></td>" if row.frontier else cell(row.entry)
    return [cell(row.model), cell("" if row.plain else str(row.K)), name, cell(accuracy),
            cell(over), cell(f"{row.rho:.2f}" if row.rho else ""),
            cell(seeds_text(row, most)), f'<td class="why">{escape(row.said[:120])}</td>']  # fmt: skip


def _role(row: StudyRow) -> str:
    return "serial" if row.plain else ""


def frontier(rows: Sequence[StudyRow], model: str) -> Figure:
    """Accuracy against speedup; the dots of a method are its K."""
    lines: list[Curve] = []
    for entry in dict.fromkeys(row.entry for row in rows):
        of = sorted((row for row in rows if row.entry == entry and row.rho), key=lambda row: row.K)
        if of:
            lines.append((entry, [row.rho or 0.0 for row in of], [row.mean for row in of], _role(of[0])))
    return chart(lines, f"{model}: accuracy, %", "speedup ρ, dots by K", name="frontier")


def over_epochs(rows: Sequence[StudyRow], K: int) -> Figure:
    lines = [(row.entry, [e for e, _ in row.curve], [a for _, a in row.curve], _role(row)) for row in rows if row.curve]
    return chart(lines, f"validation accuracy, %, K = {K}", "epochs", least=1, name="epochs")


def over_time(rows: Sequence[StudyRow], K: int) -> Figure:
    lines = [(row.entry, row.seconds(), [a for _, a in row.curve], _role(row)) for row in rows if row.curve]
    return chart(lines, f"validation accuracy, %, K = {K}", "seconds of training", name="time")
