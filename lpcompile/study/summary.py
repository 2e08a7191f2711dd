"""The results of a study by model, method and K: accuracy beside plain training, and cost."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpcompile.core.tables import size
from lpcompile.draw.markdown import NO_VALUE, markdown
from lpcompile.errors import UsageError
from lpcompile.study.config import PLAIN, TUNING_SEED, RunSpec
from lpcompile.study.times import MEASURED, SIMULATED, time_key

COUNTED = "counted"  # ρ simulated from counted FLOPs: no step was timed
MARKS = {MEASURED: "", SIMULATED: " s", COUNTED: " c"}
SETTINGS = ("size", "images", "validation", "epochs", "split")  # that all runs of a table share


@dataclass
class StudyRow:
    """A method on a model at a K, over its seeds. gaps: points above plain training, by seed."""

    model: str
    entry: str
    method: str
    K: int
    accuracy: list[float] = field(default_factory=list)
    gaps: dict[int, float] = field(default_factory=dict)
    curve: list[tuple[float, float]] = field(default_factory=list)  # epochs, mean accuracy on validation data
    rho: float | None = None
    kind: str = ""
    step: float | None = None  # ms
    per_epoch: int = 0  # steps
    memory: int | None = None  # bytes, largest rank
    sent: int | None = None  # bytes a step
    late: float = 0.0
    micro: int | None = None
    said: str = ""
    failed: int = 0
    frontier: bool = False

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracy)

    @property
    def gap(self) -> float | None:
        return statistics.mean(self.gaps.values()) if self.gaps else None

    @property
    def plain(self) -> bool:
        return self.method == PLAIN and self.K == 1

    def seconds(self) -> list[float]:
        """Wall-clock time at the points of the curve."""
        each = (self.step or 0.0) * self.per_epoch / 1e3
        return [epoch * each for epoch, _ in self.curve]


def rows_of(found: Sequence[Mapping[str, Any]], times: Sequence[Mapping[str, Any]] = ()) -> list[StudyRow]:
    """One row for each model, method and K, plain training first; runs that tuned an option are left out."""
    found = [r for r in found if r["run"]["seed"] != TUNING_SEED]
    specs = [RunSpec.from_json(r["run"]) for r in found]
    timed = {t["key"]: t for t in times if "rho" in t}
    plain = {(s.network.name, s.seed): r["accuracy"] for s, r in zip(specs, found, strict=True)
             if s.entry.alone and "accuracy" in r}  # fmt: skip
    rows: dict[tuple[str, str, int], StudyRow] = {}
    curves: dict[tuple[str, str, int], dict[float, list[float]]] = {}
    for spec, record in zip(specs, found, strict=True):
        key = (spec.network.name, spec.entry.name, spec.K)
        row = rows.setdefault(key, StudyRow(*key[:2], spec.entry.method, spec.K, per_epoch=spec.per_epoch))
        row.said = row.said or record.get("error", "") or "; ".join(record["said"])
        if "accuracy" not in record:
            row.failed += 1
            continue
        row.accuracy.append(record["accuracy"])
        if (spec.network.name, spec.seed) in plain and not row.plain:
            row.gaps[spec.seed] = record["accuracy"] - plain[spec.network.name, spec.seed]
        for epoch, value in record["curve"]:
            curves.setdefault(key, {}).setdefault(epoch, []).append(value)
        _add_cost(row, record, spec.steps, timed.get(time_key(spec.network, spec.entry, spec.K, spec.size)))
    for key, row in rows.items():
        row.curve = [(epoch, statistics.mean(values)) for epoch, values in sorted(curves.get(key, {}).items())]
    _add_plain_times(rows, timed, specs)
    done = [row for row in rows.values()]
    for row in done:
        row.frontier = on_frontier(row, [other for other in done if (other.model, other.K) == (row.model, row.K)])
    return sorted(done, key=lambda row: (list(dict.fromkeys(s.network.name for s in specs)).index(row.model), row.K))


def of_one_study(found: list[dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """Refuse records of studies that differ in more than models, methods, K and seeds: means would mix them."""
    settings: dict[str, set[Any]] = {}
    options: dict[tuple[str, str, int], set[str]] = {}
    for run in (r["run"] for r in found if r["run"]["seed"] != TUNING_SEED):
        for name in SETTINGS:
            settings.setdefault(name, set()).add(run[name])
        settings.setdefault("data", set()).update({run["data"]} - {"text"})
        key = run["network"]["name"], run["entry"]["name"], run["K"]
        options.setdefault(key, set()).add(json.dumps([run["network"], run["entry"]], sort_keys=True))
    several = [f"{name} {' and '.join(map(str, sorted(of)))}" for name, of in settings.items() if len(of) > 1]
    several += [f"{model} {entry} with different options" for (model, entry, _), of in options.items() if len(of) > 1]
    if several:
        raise UsageError(
            f"{out} holds runs of several studies ({'; '.join(several)}), which one table would mix; run one of them "
            f"again: what is done is not repeated, and only its runs are shown"
        )
    return found


def _add_cost(row: StudyRow, record: Mapping[str, Any], steps: int, timed: Mapping[str, Any] | None) -> None:
    simulated = record.get("simulated", {})
    row.memory, row.sent, row.late = simulated.get("memory"), simulated.get("sent"), simulated.get("late", 0.0)
    row.micro = record.get("micro")
    share = record.get("exact", record.get("exact_steps", 0) / steps)
    if timed is not None:
        exact = timed.get("exact step", timed["step"])
        row.step = (1 - share) * timed["step"] + share * exact  # of the last seed's run, warm-up and all
        row.rho, row.kind = timed["plain"] / row.step if share else timed["rho"], timed["kind"]
    elif row.method == PLAIN:
        row.rho = 1.0
    elif "rho" in simulated:
        rho = simulated["rho"]
        row.rho, row.kind = 1 / ((1 - share) / rho + share / simulated.get("exact rho", rho)), COUNTED


def _add_plain_times(rows: Mapping[Any, StudyRow], timed: Mapping[str, Any], specs: Sequence[RunSpec]) -> None:
    """Plain training's step is measured beside every method; where it has no record of its own, theirs counts."""
    for row in rows.values():
        keys = [time_key(s.network, s.entry, s.K, s.size) for s in specs if s.network.name == row.model]
        beside = [timed[key]["plain"] for key in keys if key in timed]
        if row.plain and row.step is None and beside:
            row.step = statistics.median(beside)


def on_frontier(row: StudyRow, others: Sequence[StudyRow]) -> bool:
    """Whether no other method is both faster and more accurate."""
    if not row.accuracy or row.rho is None or row.plain:
        return False
    rivals = [o for o in others if o.accuracy and o.rho is not None and o is not row and not o.plain]
    return not any(
        o.mean >= row.mean and (o.rho or 0.0) >= row.rho and (o.mean, o.rho) != (row.mean, row.rho) for o in rivals
    )


def plus_minus(values: Sequence[float], form: str) -> str:
    """The mean, and where there are several values their standard deviation."""
    mean = f"{statistics.mean(values):{form}}"
    return f"{mean} ± {statistics.stdev(values):{form.lstrip('+')}}" if len(values) > 1 else mean


def seeds_text(row: StudyRow, most: int) -> str:
    """How many seeds a mean is of: fewer than other rows have, and failed ones, are told."""
    count = len(row.accuracy)
    return (f"{count} of {most}" if count < most else str(count)) + (f", {row.failed} failed" if row.failed else "")


def most_seeds(rows: Sequence[StudyRow]) -> int:
    return max((len(row.accuracy) for row in rows), default=0)


def table_text(rows: Sequence[StudyRow]) -> str:
    """All rows as one Markdown table, with notes on how to read it."""
    headers = ["model", "K", "method", "test accuracy", "over plain", "ρ", "memory", "sent a step", "late",
               "seeds", "said"]  # fmt: skip
    most = most_seeds(rows)
    cells = [
        [
            row.model,
            "" if row.plain else str(row.K),
            f"**{row.entry}**" if row.frontier else row.entry,
            plus_minus(row.accuracy, ".2f") if row.accuracy else "failed",
            plus_minus(list(row.gaps.values()), "+.2f") if row.gaps else "",
            f"{row.rho:.2f}{MARKS.get(row.kind, '')}" if row.rho is not None else NO_VALUE,
            size(row.memory) if row.memory else NO_VALUE,
            size(row.sent) if row.sent is not None else NO_VALUE,
            f"{row.late:.2g}" if row.late else "",
            seeds_text(row, most),
            row.said.splitlines()[0][:60] if row.said else "",
        ]
        for row in rows
    ]
    return "\n\n".join([markdown(headers, cells), "\n".join(f"- {note}" for note in notes(rows))])


def notes(rows: Sequence[StudyRow]) -> list[str]:
    kinds = {row.kind for row in rows}
    found = [
        "test accuracy in percent, over plain: points above plain training of the same seed; both are means over "
        "seeds ± their standard deviation; **bold**: no other method at that K is both faster and more accurate.",
        "late: steps by which gradients are late, on the rank that is latest; memory: largest rank, of the plan.",
    ]
    said = {
        MEASURED: "ρ: plain training's step over the method's, in processes of their own on one core each.",
        SIMULATED: "ρ marked s: simulated from unit times that were measured on one core.",
        COUNTED: "ρ marked c: simulated from counted FLOPs; no step was timed (run the study with --times).",
    }
    return found + [text for kind, text in said.items() if kind in kinds]
