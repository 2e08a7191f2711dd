"""Our rows with their records: accuracy over seeds, curves, speedups, and why a row has none."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lpcompile.paper.data import augmented, samples_per_epoch
from lpcompile.paper.experiments import TableRow
from lpcompile.paper.printed import BY_KEY, Printed
from lpcompile.runtime.methods import get_method
from lpcompile.study.config import PLAIN
from lpcompile.study.times import MEASURED, time_key

PREDICTED = "predicted"


@dataclass
class Result:
    """A row of our table. accuracy: of each seed that is done; rho_kind: "measured" or "predicted"."""

    name: str
    printed: Printed | None
    wanted: int
    plain: bool
    K: int
    accuracy: list[float] = field(default_factory=list)
    recalibrated: list[float] = field(default_factory=list)
    curves: list[list[Mapping[str, Any]]] = field(default_factory=list)
    rho: float | None = None
    rho_kind: str = ""
    predicted: float | None = None  # ρ from counted FLOPs, measured or not
    formula: float | None = None  # ρ by the paper's formula
    share: float | None = None  # of AuxNets, or heads, in their stages
    nets: str = "AuxNets"
    adapters: str = ""  # of AuxNets cut from a smaller model
    steps: int = 0
    start: str = ""  # "consistent", or the model's own first weights
    exact: float = 0.0  # share of a decoupled run's steps that were exact
    failed: int = 0  # runs that ended with an error
    why: str = ""  # it failed, or is not done
    note: str = ""

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.accuracy) if self.accuracy else None

    @property
    def spread(self) -> float:
        """Largest minus smallest accuracy over seeds."""
        return max(self.accuracy) - min(self.accuracy) if self.accuracy else 0.0

    @property
    def end_violation(self) -> float | None:
        """Of the last epoch, mean over seeds."""
        last = [curve[-1].get("violation") for curve in self.curves if curve]
        known = [value for value in last if value is not None]
        return statistics.mean(known) if known else None

    def curve(self, name: str) -> tuple[list[float], list[float]]:
        """Epochs, and the mean over seeds of "train loss", "violation" or "accuracy"."""
        values: dict[float, list[float]] = {}
        for curve in self.curves:
            for point in curve:
                if point.get(name) is not None:
                    values.setdefault(point["epoch"], []).append(point[name])
        return list(values), [statistics.mean(of) for of in values.values()]


def results(
    key: str, rows: Sequence[TableRow], found: Mapping[str, Mapping[str, Any]], times: Mapping[str, Mapping[str, Any]]
) -> list[Result]:
    """found: records by key of their run; times: by `time_key`."""
    printed = {column.name: column for column in BY_KEY[key].columns} if key in BY_KEY else {}
    return [_result(row, printed.get(row.printed), found, times) for row in rows]


def _result(
    row: TableRow,
    printed: Printed | None,
    found: Mapping[str, Mapping[str, Any]],
    times: Mapping[str, Mapping[str, Any]],
) -> Result:
    if not row.runs:
        return Result(row.name, printed, 0, False, 0, why=row.note)
    first = row.runs[0]
    result = Result(row.name, printed, len(row.runs), first.entry.method == PLAIN, first.K, note=row.note)
    result.steps = first.epochs * (samples_per_epoch(first.images, augmented(first)) // first.network.batch)
    result.start = str(first.entry.options.get("init", ""))
    if first.entry.method != PLAIN and get_method(first.entry.method).heads:
        result.nets = "heads"
    records = [found[run.key] for run in row.runs if run.key in found]
    for record in records:
        if "error" in record:
            result.why, result.failed = record["error"].splitlines()[0], result.failed + 1
            continue
        result.accuracy.append(record["accuracy"])
        result.curves.append(record["curve"])
        if "recalibrated accuracy" in record:
            result.recalibrated.append(record["recalibrated accuracy"])
        if record.get("aux"):
            result.share = statistics.mean(a["share"] for a in record["aux"])
            made = [part for a in record["aux"] for part in a["made"].split("; ")[1:]]
            result.adapters = ", ".join(dict.fromkeys(made))
        result.formula = record.get("formula")
        result.exact += record.get("exact", 0.0) / len(records)
        if "rho" in record.get("simulated", {}):
            result.predicted = result.rho = record["simulated"]["rho"]
            result.rho_kind = PREDICTED
    timed = times.get(time_key(first.network, first.entry, first.K, first.size))
    if timed is not None and "rho" in timed:
        result.rho, result.rho_kind = timed["rho"], MEASURED if timed["kind"] == MEASURED else PREDICTED
        result.formula = timed.get("formula", result.formula)
    if not records:
        result.why = "not run yet"
    return result
