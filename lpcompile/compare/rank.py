"""A process of a comparison: it trains by one method, or plainly on one core, and measures itself.

An epoch's time is what the slowest rank needs for all its samples, loading them and a skewed method's last backwards
included, evaluation not. Memory is counted in a few steps after the last evaluation, where counting disturbs nothing.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from lpcompile import sources
from lpcompile.compare import timeline
from lpcompile.compare.runners import MethodRunner, Runner, SerialRunner
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.engine import memory
from lpcompile.runtime.launch import board
from lpcompile.training.build import check_classes, compile_job, image_shape, make_trainer
from lpcompile.training.data import loaders
from lpcompile.training.job import Job

WARM_UP_STEPS = 2  # of a serial block, not timed
MAX_TIMED_STEPS = 20  # of a serial block, which otherwise takes half an epoch
MEMORY_STEPS = 3  # in which memory is counted, besides those for which a method keeps anything


@dataclass(frozen=True)
class TrainingRun:
    """One training run of a comparison. `label` begins its progress lines; `augment` is the same for all runs."""

    job: Job
    label: str
    augment: bool = True


def train_method(spec: TrainingRun) -> dict[str, Any]:
    """One rank of a method; rank 0 returns the record of all ranks."""
    logging.basicConfig(level=logging.ERROR)  # the table has a run's results
    job, (model, train, test, classes) = spec.job, _start(spec)
    x = next(iter(train))[0]
    program = compile_job(job, model, x, None)
    check_classes(program, x, classes, job)
    trainer = make_trainer(job, program, job.epochs * len(train))
    mine = measure(MethodRunner(trainer), spec, train, test)
    everyone = exchange.gathered(mine, trainer.control)
    zeroed = sum(len(b.aux.zeroed) for b in program.plan.boundaries if b.aux is not None)
    return together(everyone, trainer.micro) | {"zeroed": zeroed}


def train_serial(spec: TrainingRun) -> dict[str, Any]:
    """Plain training on one core."""
    model, train, test, _ = _start(spec)
    return together([measure(SerialRunner(spec.job, model, len(train)), spec, train, test)], micro=1)


def time_serial(spec: TrainingRun) -> float:
    """Seconds per step of plain training, measured between two methods, for their ρ."""
    model, train, _, _ = _start(spec)
    runner = SerialRunner(spec.job, model, len(train))
    batches = islice(train, WARM_UP_STEPS + min(MAX_TIMED_STEPS, max(1, len(train) // 2)))
    taken, begin = [], time.perf_counter()
    for batch in batches:
        runner.step(batch)
        taken.append(time.perf_counter() - begin)
        begin = time.perf_counter()
    return statistics.mean(taken[WARM_UP_STEPS:] or taken)


def _start(spec: TrainingRun) -> tuple[nn.Module, Any, Any, int]:
    """The same model, samples and order in every run."""
    job = spec.job
    torch.manual_seed(job.seed)
    source = sources.load(job.model, batch=job.batch, input_shape=job.input, seed=job.seed)
    channels, size = image_shape(source, job)
    train, test, classes = loaders(job.data, channels=channels, size=size, batch=job.batch, seed=job.seed,
                                   augment=spec.augment)  # fmt: skip
    return source.model, train, test, classes


def measure(runner: Runner, spec: TrainingRun, train: Any, test: Any) -> dict[str, Any]:
    """Train all epochs; gives this process's record."""
    epochs = spec.job.epochs
    seen: list[dict[str, Any]] = []
    memory.reset_peak()
    for epoch in range(epochs):
        last = epoch + 1 == epochs
        runner.trace(last)
        seen.append(_epoch(runner, train, epoch))
        middle = epoch * len(train) + len(train) // 2
        events = timeline.near(runner.events or (), middle, runner.keeps)
        with board.away(epoch * len(train), "evaluation"):
            seen[-1]["shown"] = runner.evaluate(test, train if last else None)
        if runner.rank == 0:
            _tell(spec, seen)
    runner.trace(False)
    return {"epochs": seen, "events": events, "process": memory.process(), "tensors": _tensors(runner, train),
            "middle": middle}  # fmt: skip


def _epoch(runner: Runner, train: Any, epoch: int) -> dict[str, Any]:
    train.sampler.set_epoch(epoch)
    waited, sent = 0.0, []
    runner.meet()
    begin, cpu = time.perf_counter(), time.process_time()
    for step, (batch, asked, there) in enumerate(_asked(train), start=epoch * len(train)):
        if runner.events is not None:
            runner.events.append(("data", runner.rank, step, asked, there))
        wait, size = runner.step(batch)
        waited += wait
        sent.append(size)
    runner.finish()
    done, cpu = time.perf_counter(), time.process_time() - cpu
    runner.meet()
    end = time.perf_counter()
    return {
        "seconds": end - begin,
        "idle": waited + end - done,
        "lost": max(0.0, done - begin - waited - cpu),  # the core was busy with other processes
        "sent": statistics.median(sent),
        "samples": len(train) * train.batch_size,
    }


def _asked(train: Any) -> Iterator[tuple[Any, float, float]]:
    """Batches, with the times at which each was requested and arrived."""
    asked = time.perf_counter()
    for batch in train:
        yield batch, asked, time.perf_counter()
        asked = time.perf_counter()


def _tensors(runner: Runner, train: Any) -> int:
    """The most bytes of tensors at once in a step of the steady state."""
    runner.freeze_rate()
    alive = memory.Alive()
    with alive:
        for batch in islice(train, runner.keeps + MEMORY_STEPS):
            runner.step(batch)
        fixed = runner.fixed()
        runner.finish()
    return fixed + alive.most


def _tell(spec: TrainingRun, seen: list[dict[str, Any]]) -> None:
    now = seen[-1]
    rate, right = now["samples"] / now["seconds"], 100 * now["shown"]["accuracy"]
    text = f"epoch {len(seen)} of {spec.job.epochs}, {rate:.0f} samples/s, test accuracy {right:.1f} %"
    print(f"{spec.label}: {text}", file=sys.stderr, flush=True)


def together(everyone: list[dict[str, Any]], micro: int) -> dict[str, Any]:
    """One record of all ranks. The first epoch is warm-up and counts only if it is the only one."""
    first = everyone[0]["epochs"]
    ranks = []
    for seen in everyone:
        counted = seen["epochs"][1:] or seen["epochs"]
        whole = sum(e["seconds"] for e in counted)
        ranks.append({
            "idle": sum(e["idle"] for e in counted) / whole,
            "lost": sum(e["lost"] for e in counted) / whole,
            "sent": statistics.median(e["sent"] for e in counted),
            "tensors": seen["tensors"],
            "process": seen["process"],
        })  # fmt: skip
    return {
        "seconds": [max(seen["epochs"][i]["seconds"] for seen in everyone) for i in range(len(first))],
        "samples": first[0]["samples"],
        "shown": [e["shown"] for e in first],
        "micro": micro,
        "ranks": ranks,
        "timeline": timeline.lanes([seen["events"] for seen in everyone], everyone[0]["middle"], micro),
    }
