"""The tables as text: the paper's figures beside ours, with what holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lpcompile.draw.markdown import NO_VALUE, markdown, shortened
from lpcompile.paper.experiments import ABLATION
from lpcompile.paper.printed import BY_KEY
from lpcompile.paper.results import PREDICTED, Result
from lpcompile.paper.trends import reading, verdict
from lpcompile.study.times import MEASURED

HEADERS = ["row", "K", "paper: accuracy", "paper: ρ", "accuracy", "seeds", "ρ", "ρ by formula", "remark"]
MARK = {PREDICTED: " p", MEASURED: " m"}
LEGEND = (
    "ρ: of a decoupled step; p: predicted from counted FLOPs, m: measured on one core per rank; formula: "
    "the paper's formula with the same costs, T_d and t_ψ left out. Violation: |λ - X|² / |X|², mean over boundaries "
    "and the last epoch. Norms anew: with BatchNorm statistics taken on X."
)
OTHERS = (
    f"{LEGEND} The paper's speedups on its own GPUs, simulated "
    "with its placement, are in `python -m lpcompile simulate --paper`; measured timelines in `compare --html`."
)


def title(key: str) -> str:
    if key == ABLATION:
        return "Ablation: the paper's settings, and one of lpcompile's at a time"
    table = BY_KEY[key]
    return f"{table.label}: {table.caption}"


def summary(tables: Mapping[str, Sequence[Result]]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows: of every table what the paper concludes, and whether that holds here."""
    rows = []
    for key, found in tables.items():
        printed = BY_KEY.get(key)
        about = (printed.label, printed.trend) if printed else ("ablation", "(no table of the paper)")
        said = verdict(key, found)
        short, _, figures = said.partition(": ") if printed or said.startswith("open") else ("–", "", said)
        rows.append([*about, short, figures])
    return ["table", "the paper", "here that", "by these figures"], rows


def to_json(key: str, found: Sequence[Result]) -> dict[str, Any]:
    """The table with all that is shown of it."""
    return {
        "table": key,
        "title": title(key),
        "paper": BY_KEY[key].trend if key in BY_KEY else None,
        "here": verdict(key, found),
        "rows": [_row_to_json(r) for r in found],
    }


def _row_to_json(r: Result) -> dict[str, Any]:
    curves = {name: list(zip(*r.curve(name), strict=True)) for name in ("train loss", "violation", "accuracy")}
    return {
        "row": r.name,
        "K": r.K,
        "paper": {"accuracy": r.printed.accuracy, "rho": r.printed.rho} if r.printed else None,
        "accuracy": r.accuracy,
        "recalibrated accuracy": r.recalibrated,
        "seeds wanted": r.wanted,
        "rho": r.rho,
        "rho is": r.rho_kind or None,
        "rho by formula": r.formula,
        "remarks": remarks(r),
        "curves": curves,  # [epoch, mean over seeds]
    }


def text(key: str, found: Sequence[Result]) -> str:
    trend = f"Paper: {BY_KEY[key].trend}.\n" if key in BY_KEY else ""
    missing, why = left_out(key, found), ended(reading(key, found))
    return "\n".join([
        f"### {title(key)}", "", markdown(HEADERS, [cells(r) for r in found]), "",
        f"{trend}Here it {sentence(verdict(key, found))}" if key in BY_KEY else f"Here, {verdict(key, found)}.",
        *([why] if why else []),
        *([f"Not run: {missing}."] if missing else []),
    ])  # fmt: skip


def ended(text: str) -> str:
    """With a full stop, unless there is nothing."""
    return f"{text}." if text else ""


def sentence(said: str) -> str:
    return f"is {said}." if said.startswith("open") else f"{said}."


def cells(r: Result) -> list[str]:
    return [
        r.name,
        str(r.K or NO_VALUE),
        _number(r.printed.accuracy if r.printed else None, 1),
        _number(r.printed.rho if r.printed else None, 2),
        accuracy(r),
        f"{len(r.accuracy)}" + (f" of {r.wanted}" if len(r.accuracy) < r.wanted else ""),
        f"{r.rho:.2f}{MARK.get(r.rho_kind, '')}" if r.rho is not None else NO_VALUE,
        _number(r.formula, 2),
        "; ".join(remarks(r)),
    ]


def remarks(r: Result) -> list[str]:
    """Why a row has no figure, and what its figure rests on."""
    share = [f"{r.nets} {r.share:.0%} of a stage"] if r.share else []
    far = r.end_violation
    left = [f"violation {far:.2g} at the end"] if far is not None else []
    exact = [f"{r.exact:.0%} of steps exact"] if r.exact else []
    why = shortened(r.why) if r.why and r.wanted else r.why  # what to do instead is said in full
    start = f"{r.start} start" if r.start and not r.plain else ""
    return [*filter(None, [why, *share, r.adapters, start, *left, *exact, r.note])]


def accuracy(r: Result) -> str:
    """Mean, range over seeds, and after BatchNorm statistics were taken anew where that is another value."""
    if r.mean is None:
        return NO_VALUE
    found = f"{r.mean:.1f}"
    if len(r.accuracy) > 1:
        found += f" ({min(r.accuracy):.1f}-{max(r.accuracy):.1f})"
    again = sum(r.recalibrated) / len(r.recalibrated) if r.recalibrated else r.mean
    return f"{found}, norms anew {again:.1f}" if abs(again - r.mean) >= 0.5 else found


def left_out(key: str, found: Sequence[Result]) -> str:
    """The paper's rows that this scale has no run for."""
    there = {r.printed.name for r in found if r.printed}
    return ", ".join(c.name for c in BY_KEY[key].columns if c.name not in there) if key in BY_KEY else ""


def _number(value: float | None, digits: int) -> str:
    return NO_VALUE if value is None else f"{value:.{digits}f}"
