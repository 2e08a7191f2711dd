"""`python -m lpcompile compare`: every method on the same model, samples, batch and seed, beside plain training.

A Request is what was asked for, a Comparison what has been found so far: plain data with a versioned JSON form. Each
method trains once in processes of its own, one core each. Between two of them a block of plain training is timed, so
that ρ is taken against how fast the machine was just before and just after.
"""

from __future__ import annotations

import datetime
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lpcompile import sources
from lpcompile.compare.properties import bare_plan, properties
from lpcompile.compare.rank import Task, time_serial, train_method, train_serial
from lpcompile.compile import parallelize
from lpcompile.core.atomic_file import write_json
from lpcompile.core.method import BatchFacts
from lpcompile.errors import LpError, TrainingError, UsageError
from lpcompile.runtime.launch import launch
from lpcompile.runtime.methods import METHODS, ScheduleOptions, get_method
from lpcompile.training.data import loaders
from lpcompile.training.job import Job, _image, _stores

VERSION = 1
SHARE = 0.95  # of plain training's last accuracy: the target where none is given
LEAST_K = 3  # stages for which marks are derived: with two, methods that differ look alike


@dataclass(frozen=True)
class Request:
    """What is compared. `methods` are names; `target`: the accuracy that is to be reached, None: see SHARE."""

    model: str
    K: int = 2
    methods: tuple[str, ...] = tuple(METHODS)
    data: str = "digits"
    epochs: int = 4
    batch: int = 64
    lr: float = 0.1
    optimizer: str = "sgd"
    target: float | None = None
    micro: int | None = None
    seed: int = 0
    size: int | None = None
    input: str | None = None
    init: str | None = None
    cost: str = "measured"
    timeout: float = launch.TIMEOUT

    def job(self, method: str) -> Job:
        options = {} if self.micro is None else {"micro": self.micro}
        return Job(self.model, self.data, self.K, method=method, epochs=self.epochs, batch=self.batch, lr=self.lr,
                   optimizer=self.optimizer, init=self.init, cost=self.cost, size=self.size, input=self.input,
                   seed=self.seed, timeout=self.timeout, options=options)  # fmt: skip

    def check(self) -> None:
        """All that can be known to be wrong before anything is started."""
        for method in self.methods:
            get_method(method)
        if not self.methods:
            raise UsageError(f"--methods names none; there are {', '.join(METHODS)}")
        if self.K < 2:
            raise UsageError(f"-K {self.K}: a comparison needs 2 stages or more; plain training is always beside them")
        if self.micro is not None and (self.micro < 1 or self.batch % self.micro):
            parts = ", ".join(str(m) for m in range(1, min(self.batch, 32) + 1) if self.batch % m == 0)
            raise UsageError(f"--micro {self.micro} does not divide --batch {self.batch}; it has {parts} equal parts")
        if self.target is not None and not 0 < self.target <= 1:
            raise UsageError(f"--target {self.target:g} is no share of right answers: give 0.9 for 90 %")
        self.job("bp").check()
        if launch.torchrun_rank() is not None:
            raise UsageError("compare starts its own processes, K for each method in turn: run it without torchrun")
        _check_model(self)


def _check_model(request: Request) -> None:
    """The model can be cut into K stages, and the data fits it: told from its graph, without weights."""
    source = sources.load(request.model, batch=request.batch, input_shape=request.input, device="meta")
    shapes = [tuple(t.shape) for t in source.example_args if isinstance(t, torch.Tensor)]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise UsageError(f"compare is for models of one image, and {request.model} takes {shapes}")
    channels, size = _image(source, request.job(request.methods[0]))
    _, test, _ = loaders(request.data, channels=channels, size=size, batch=request.batch, seed=request.seed)
    if test is None:
        raise UsageError(f"--data {request.data} has no test images to compare by; put some into test/CLASS/...")
    x = torch.empty(request.batch, channels, size, size, device="meta")
    parallelize(source.model, request.K, example_inputs=x, cost="flops", method="bp", gate=False)


@dataclass
class Row:
    """What was found of one method. Without `seconds` it has not been measured, and `why` says why.

    seconds: training time of every epoch; accuracy: after it; recalibrated: after the last, with BatchNorm statistics
    taken anew. rho: [median, lowest, highest] of plain training's epoch over this one's. reached: seconds of training
    until the target. sent: bytes a step, over all ranks. ranks: shares of time idle and lost (the core worked for
    others), bytes sent, most bytes of tensors and of the process. zeroed: parameters that a consistent start set to
    zero. marks: [✓ or ×, why] by the paper's names. timeline: see `lpcompile.compare.timeline`.
    """

    method: str
    why: str = ""
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    recalibrated: float | None = None
    rate: float = 0.0
    rho: list[float] = field(default_factory=list)
    reached: float | None = None
    sent: int = 0
    zeroed: int = 0
    micro: int = 1
    ranks: list[dict[str, float]] = field(default_factory=list)
    marks: dict[str, list[str]] = field(default_factory=dict)
    timeline: list[list[dict[str, Any]]] = field(default_factory=list)

    @property
    def epoch(self) -> float:
        """Seconds of an epoch. The first one warms up."""
        return statistics.median(self.seconds[1:] or self.seconds)


@dataclass
class Comparison:
    """What has been found so far. `serial` is plain training on one core; `target` the accuracy to be reached."""

    request: Request
    machine: dict[str, Any] = field(default_factory=dict)
    serial: Row | None = None
    target: float = 0.0
    rows: list[Row] = field(default_factory=list)
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Comparison:
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise UsageError(f"this is no comparison of version {VERSION}; run compare again")
        request = Request(**{**data["request"], "methods": tuple(data["request"]["methods"])})
        serial = Row(**data["serial"]) if data["serial"] else None
        return Comparison(request, data["machine"], serial, data["target"], [Row(**row) for row in data["rows"]])

    def save(self, file: Path) -> None:
        write_json(file, self.to_json())


def compare(found: Comparison, keep: Callable[[], None] = lambda: None) -> None:
    """Fill in a comparison, row by row; `keep` is called after each. A method that fails does not stop the others."""
    request = found.request
    request.check()
    augment = not any(_stores(request.job(method)) for method in request.methods)
    count = len(request.methods)
    found.machine = machine()

    def alone(function: Callable[[Task], Any], label: str) -> Any:
        task = Task(request.job("bp"), label, augment)
        return launch.launch(function, (task,), world=1, K=1, timeout=request.timeout)

    serial = found.serial = _row("serial", alone(train_serial, f"[0/{count}] plain training on one core"))
    found.target = request.target or SHARE * serial.accuracy[-1]
    _judge(serial, [serial.epoch], found.target)
    keep()
    steps = round(serial.rate * serial.epoch / request.batch)
    before = serial.epoch  # seconds of a serial epoch, as the machine is now
    for number, method in enumerate(request.methods, start=1):
        task = Task(request.job(method), f"[{number}/{count}] {method}", augment)
        try:
            task.job.check()  # what only this method refuses is for its row to say
            data = launch.launch(train_method, (task,), world=request.K, K=request.K, timeout=request.timeout)
        except LpError as error:
            row = Row(method, why=_reason(error))
            print(f"{task.label}: {row.why.splitlines()[0]}", file=sys.stderr, flush=True)
        else:
            row = _row(method, data)
            after = steps * alone(time_serial, "")
            _judge(row, [before, after], found.target)
            before = after
        row.marks = marks(request, method)
        found.rows.append(row)
        keep()


def _row(method: str, data: dict[str, Any]) -> Row:
    accuracy = [shown["accuracy"] for shown in data["shown"]]
    row = Row(method, seconds=data["seconds"], accuracy=accuracy, ranks=data["ranks"], micro=data["micro"],
              sent=round(sum(r["sent"] for r in data["ranks"])), timeline=data["timeline"],
              zeroed=data.get("zeroed", 0))  # fmt: skip
    row.recalibrated = data["shown"][-1].get("recalibrated accuracy")
    row.rate = data["samples"] / row.epoch
    return row


def _judge(row: Row, serial: list[float], target: float) -> None:
    """ρ against the serial epochs just before and after, and the time to the target."""
    counted = row.seconds[1:] or row.seconds
    row.rho = [
        statistics.mean(serial) / row.epoch,
        min(serial) / max(counted),
        max(serial) / min(counted),
    ]
    spent = 0.0
    for seconds, accuracy in zip(row.seconds, row.accuracy, strict=True):
        spent += seconds
        if accuracy >= target:
            row.reached = spent
            return


def _reason(error: LpError) -> str:
    return f"failed: {error}" if isinstance(error, TrainingError) else f"cannot: {error}"


def marks(request: Request, method: str) -> dict[str, list[str]]:
    """The paper's columns for the method's schedule, on K stages or three. Nothing where it has none for them."""
    for K in sorted({max(request.K, LEAST_K), request.K}, reverse=True):
        plan, found = bare_plan(K, method, request.batch), get_method(method)
        try:
            micro = request.micro if request.micro is not None else found.default_micro(BatchFacts(K, request.batch))
            schedule = found.schedule(plan, ScheduleOptions(micro=micro or 1))
        except LpError:
            continue
        return {name: [mark.sign, mark.why] for name, mark in properties(schedule).items()}
    return {}


def machine() -> dict[str, Any]:
    """What a measurement should say of where it was made."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "cores": cores}
