"""Predicted against measured step times: real training on K processes of this machine, by every method.

>>> print(check_text(check(["resnet110"], methods=["bp", "penalty"])))

Costs are measured once per model on one core, as for plans; the device spec is all else that the simulator knows of
this machine. Then K processes train, one core each, and their traces give the step time and each rank's compute.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from lpcompile import sources
from lpcompile.compile import parallelize
from lpcompile.core.tables import Column, table_of
from lpcompile.errors import LpError
from lpcompile.passes.profile.profile import fresh_costs
from lpcompile.runtime.methods import METHODS
from lpcompile.simulate.device_spec import THIS_MACHINE, DeviceSpec
from lpcompile.simulate.step import simulate

MODELS = {"resnet110": 64, "wide_resnet16_4": 64, "vit_s16_96": 32}  # model: batch
STEPS, EPOCHS = 8, 2  # the first epoch is warm-up: cold caches, first stored λ


@dataclass(frozen=True)
class Checked:
    """One method on one model; times in ms."""

    model: str
    method: str
    K: int
    predicted: float
    measured: float
    busy: tuple[float, ...]  # predicted, a rank
    computed: tuple[float, ...]  # measured, a rank
    why: str = ""  # why nothing was measured

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1 if self.measured else 0.0


def check(
    models: Sequence[str] = tuple(MODELS),
    *,
    methods: Sequence[str] = tuple(METHODS),
    K: int = 2,
    batch: int | None = None,
    device: DeviceSpec = THIS_MACHINE,
    steps: int = STEPS,
    tell: Callable[[Checked], None] | None = None,
) -> list[Checked]:
    """Check all models by all methods; `tell` is called with every finished row."""
    found = []
    with fresh_costs():
        for name in models:
            for method in methods:
                try:
                    row = check_one(name, method, K, batch or MODELS.get(name, 32), device, steps)
                except LpError as error:
                    row = Checked(name, method, K, 0.0, 0.0, (), (), str(error))
                found.append(row)
                if tell is not None:
                    tell(row)
    return found


def check_one(name: str, method: str, K: int, batch: int, device: DeviceSpec, steps: int) -> Checked:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        source = sources.load(name, batch=batch)
        program = parallelize(source.model, K, example_inputs=source.example_args, cost="measured", method=method,
                              threads=1)  # fmt: skip
        predicted = simulate(program.plan, device)
        x = source.example_args[0]
        data = [(x, torch.arange(batch) % 10, torch.arange(i * batch, (i + 1) * batch)) for i in range(steps)]
        with tempfile.TemporaryDirectory() as folder:
            file = f"{folder}/trace.json"
            program.fit(F.cross_entropy, data, EPOCHS, optimizer=_sgd, method=method, trace=file, train_batches=0)
            with open(file) as opened:
                events = json.load(opened)["traceEvents"]
    finally:
        torch.set_num_threads(threads)
    measured, computed = measured_step(events, K, steps + 1, EPOCHS * steps - 1)
    return Checked(name, method, K, predicted.step, measured, predicted.busy, computed)


def _sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1e-4, momentum=0.9)


def measured_step(events: Sequence[dict[str, Any]], K: int, first: int, last: int) -> tuple[float, tuple[float, ...]]:
    """The step time and each rank's compute per step, in ms, from a trainer's trace: medians over the steps from
    `first` to before `last`; the step time is the slowest rank's."""
    lengths, computed = [], []
    for rank in range(K):
        mine = [e for e in events if e["ph"] == "X" and e["pid"] == rank and first <= e["args"]["step"] < last]
        numbers = sorted({e["args"]["step"] for e in mine})
        begins = [min(e["ts"] for e in mine if e["args"]["step"] == n) for n in numbers]
        lengths.append(statistics.median(b - a for a, b in pairwise(begins)) / 1e3)
        work = [sum(e["dur"] for e in mine if e["args"]["step"] == n and e["cat"] == "compute") for n in numbers]
        computed.append(statistics.median(work) / 1e3)
    return max(lengths), tuple(computed)


def check_text(rows: Sequence[Checked], device: DeviceSpec | None = None) -> str:
    """The table, and the largest error."""
    columns: list[Column[Checked]] = [
        Column("model", lambda r: r.model),
        Column("method", lambda r: r.method),
        Column("K", lambda r: r.K),
        Column("predicted ms", lambda r: "-" if r.why else f"{r.predicted:.1f}"),
        Column("measured ms", lambda r: "-" if r.why else f"{r.measured:.1f}"),
        Column("off by", lambda r: "-" if r.why else f"{100 * r.off:+.0f} %"),
        Column("predicted work by rank", lambda r: " ".join(f"{b:.1f}" for b in r.busy)),
        Column("measured work by rank", lambda r: r.why or " ".join(f"{c:.1f}" for c in r.computed)),
    ]
    real = [abs(r.off) for r in rows if not r.why]
    within = sum(off <= 0.1 for off in real)
    end = (
        f"{within} of {len(real)} within 10 %; at most {100 * max(real):.0f} % off" if real else "nothing was measured"
    )
    spec = f"\npredicted with {device}" if device is not None else ""
    return f"{table_of(rows, columns)}\n\n{end}{spec}"
