"""`python -m lpcompile compare`: every method on the same model, samples, batch and seed, beside plain training.

Each method trains once in processes of its own, one core each. Between two of them a block of plain training is timed,
so that ρ is taken against how fast the machine was just before and just after.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

from lpcompile.compare.properties import bare_plan, properties
from lpcompile.compare.rank import TrainingRun, time_serial, train_method, train_serial
from lpcompile.compare.request import CompareRequest
from lpcompile.compare.results import Comparison, MethodRow
from lpcompile.core.method import BatchFacts
from lpcompile.errors import LpError
from lpcompile.runtime.launch import launch
from lpcompile.runtime.methods import ScheduleOptions, get_method
from lpcompile.runtime.methods.recipe import main_phase, recipe_of
from lpcompile.training.measures import command, machine, reason

DEFAULT_TARGET_SHARE = 0.95  # of plain training's last accuracy
SERIAL = "serial"  # the row of plain training
MIN_MARKED_STAGES = 3  # stages for which marks are derived: with two, methods that differ look alike


def compare(found: Comparison, keep: Callable[[], None] = lambda: None) -> None:
    """Fill in a comparison, row by row; `keep` is called after each. A method that fails does not stop the others."""
    request = found.request
    request.check()
    augment = not any(request.job(method).stores_samples for method in request.methods)
    count = len(request.methods)
    found.machine = {**machine(), "command": command()}

    def alone(function: Callable[[TrainingRun], Any], label: str) -> Any:
        spec = TrainingRun(request.job("bp"), label, augment)
        return launch.launch(function, (spec,), world=1, K=1, timeout=request.timeout)

    serial = found.serial = _row(SERIAL, alone(train_serial, f"[0/{count}] plain training on one core"))
    found.target = request.target or DEFAULT_TARGET_SHARE * serial.accuracy[-1]
    _judge(serial, [serial.epoch], found.target)
    keep()
    steps = round(serial.rate * serial.epoch / request.batch)
    before = serial.epoch  # current seconds of a serial epoch
    for number, method in enumerate(request.methods, start=1):
        spec = TrainingRun(request.job(method), f"[{number}/{count}] {method}", augment)
        try:
            spec.job.check()  # a method's own refusal belongs into its row
            data = launch.launch(train_method, (spec,), world=request.K, K=request.K, timeout=request.timeout)
        except LpError as error:
            row = MethodRow(method, why=reason(error))
            print(f"{spec.label}: {row.why.splitlines()[0]}", file=sys.stderr, flush=True)
        else:
            row = _row(method, data)
            after = steps * alone(time_serial, "")
            _judge(row, [before, after], found.target)
            before = after
        row.marks = marks(request, method)
        found.rows.append(row)
        keep()


def _row(method: str, data: dict[str, Any]) -> MethodRow:
    accuracy = [shown["accuracy"] for shown in data["shown"]]
    row = MethodRow(method, seconds=data["seconds"], accuracy=accuracy, ranks=data["ranks"], micro=data["micro"],
              sent=round(sum(r["sent"] for r in data["ranks"])), timeline=data["timeline"],
              zeroed=data.get("zeroed", 0))  # fmt: skip
    row.recalibrated = data["shown"][-1].get("recalibrated accuracy")
    row.rate = data["samples"] / row.epoch
    return row


def _judge(row: MethodRow, serial: list[float], target: float) -> None:
    """ρ against the serial epochs just before and after, and the time to the target."""
    whole = row.method != SERIAL and len(recipe_of(row.method)) > 1  # of a recipe every phase counts
    counted = row.seconds if whole else row.seconds[1:] or row.seconds
    row.rho = [
        statistics.mean(serial) / (statistics.mean(counted) if whole else row.epoch),
        min(serial) / max(counted),
        max(serial) / min(counted),
    ]
    spent = 0.0
    for seconds, accuracy in zip(row.seconds, row.accuracy, strict=True):
        spent += seconds
        if accuracy >= target:
            row.reached = spent
            return


def marks(request: CompareRequest, method: str) -> dict[str, list[str]]:
    """The paper's columns, from the method's schedule on K stages (at least three); empty if it has none."""
    for K in sorted({max(request.K, MIN_MARKED_STAGES), request.K}, reverse=True):
        name = main_phase(recipe_of(method)).method
        plan, found = bare_plan(K, name, request.batch), get_method(name)
        try:
            micro = request.micro if request.micro is not None else found.default_micro(BatchFacts(K, request.batch))
            schedule = found.schedule(plan, ScheduleOptions(micro=micro or 1))
        except LpError:
            continue
        return {name: [mark.sign, mark.why] for name, mark in properties(schedule).items()}
    return {}
