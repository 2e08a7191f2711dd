"""The training loop: epochs, evaluation, checkpoints, logs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lpcompile.errors import InputError, UsageError
from lpcompile.runtime.checkpoint import checkpoint, finite, named, room
from lpcompile.runtime.checkpoint.save import SaveError, save
from lpcompile.runtime.engine.batches.forms import parts_of
from lpcompile.runtime.health.verdict import verdict
from lpcompile.runtime.launch import board
from lpcompile.runtime.loop import evaluate as evaluation
from lpcompile.runtime.loop import timeline
from lpcompile.runtime.loop.average import AVERAGE
from lpcompile.runtime.loop.best import Best
from lpcompile.runtime.loop.callbacks import Announcer
from lpcompile.runtime.loop.data import EMPTY, NO_LENGTH, compare_data, counted, length_of, share_random
from lpcompile.runtime.loop.log import Log
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.runtime.loop.record import Record

if TYPE_CHECKING:
    from lpcompile.runtime.engine.trainer import Trainer

log = logging.getLogger("lpcompile")


def run(
    trainer: Trainer,
    loader: Iterable[Any],
    epochs: int,
    *,
    test: Iterable[Any] | None = None,
    watch: LoopOptions | None = None,
    metrics: evaluation.Metrics | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    announce: Announcer | None = None,
) -> Record:
    """Train, from the newest checkpoint on if `watch.resume`; gives the record of the run.

    All ranks call it alike. The loader must have a length, and give the same samples in the same order whenever an
    epoch is run again from the same random state. metrics: of `test`, see `trainer.evaluate`. on_step: called on every
    rank after every step, with its own metrics.
    """
    watch = watch or LoopOptions()
    if length_of(loader) is None:
        raise UsageError(NO_LENGTH)
    compare_data(trainer, epochs, loader, test, watch)
    with room.reserved(trainer, watch.save):
        length, position = _begin(trainer, loader, epochs, watch)
        with Log(trainer, watch, epochs * length) as out:
            best = Best(watch)
            best.resume(trainer.steps // length)
            going = Run(trainer, loader, test, watch, epochs * length, position, out, best,
                        announce or Announcer(trainer, None, False), on_step, metrics)  # fmt: skip
            for epoch in range(trainer.steps // length, epochs):
                if going.epoch(epoch, epoch + 1 == epochs):
                    break
            found = going.end()
            timing = out.timing()
    if watch.trace:
        timeline.write(trainer, Path(watch.trace))
    return Record(found, going.history, timing, going.why, best.note())


@dataclass
class Run:
    """A run in progress, on one rank: all ranks call its methods alike."""

    trainer: Trainer
    loader: Any
    test: Iterable[Any] | None
    watch: LoopOptions
    total: int  # steps
    position: DataPosition
    out: Log
    best: Best
    announce: Announcer
    on_step: Callable[[dict[str, Any]], None] | None
    metrics: evaluation.Metrics | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    shown: dict[str, float] = field(default_factory=dict)  # by the last evaluation
    why: str = ""  # training ends before its last epoch

    def epoch(self, epoch: int, last: bool) -> bool:
        """Train for one epoch and evaluate; whether training should end here."""
        trainer, watch, announce = self.trainer, self.watch, self.announce
        losses = self._steps(epoch)
        last = last or announce.stop
        row: dict[str, Any] = {"epoch": epoch + 1, "step": trainer.steps}
        due = last or bool(watch.evaluate_every and (epoch + 1) % watch.evaluate_every == 0)
        if due:
            self._evaluate(epoch, last)
            announce.tell("on_evaluate", {**row, **self.shown})
            self.why = self.best.seen(trainer, epoch + 1, self.shown)
            if self.why and not last and not trainer.method.exact:
                self._evaluate(epoch, last=True)
        together = due or not trainer.method.replay_buffers  # else ranks may be many steps apart
        if together:
            row |= _mean_loss(trainer, losses)
        self.history.append(row | (self.shown if due else {}))
        announce.tell("on_epoch", dict(self.history[-1]), together)
        if announce.stop:
            self.why = self.why or f"stopped by a callback at step {trainer.steps}"
        return bool(self.why)

    def _steps(self, epoch: int) -> list[float]:
        """The steps of an epoch; the losses of those that know it."""
        trainer, losses = self.trainer, list[float]()
        for batch, waited in self.position.batches(trainer, self.loader, epoch):
            metrics = trainer.step(*parts_of(trainer.input_names, trainer.loss_fn, batch))
            metrics |= {"epoch": epoch + 1, "data ms": waited}
            if trainer.average is not None:
                trainer.average.update()
            if "loss" in metrics:
                losses.append(metrics["loss"])
            if self.out.step(metrics):
                self.announce.tell("on_step", self.out.last, together=not trainer.method.replay_buffers)
            if self.on_step is not None:
                self.on_step(metrics)
            if self.watch.save_after(trainer.steps) and trainer.steps < self.total:  # the last one: see `end`
                self.position.save(trainer, self.watch, last=False)
            if self.announce.stop:
                break
        return losses

    def _evaluate(self, epoch: int, last: bool) -> None:
        began = time.perf_counter()
        with board.away(self.trainer.steps, "evaluation"), torch.random.fork_rng(devices=[]):
            self.shown = evaluated(self.trainer, self.loader, self.test, self.watch, last, self.metrics)
        self.out.evaluated(epoch + 1, self.shown, time.perf_counter() - began)

    def end(self) -> dict[str, Any]:
        """Write the last checkpoint, with the statistics that the last evaluation has taken; the last figures."""
        trainer, watch = self.trainer, self.watch
        if watch.save and trainer.steps and not self.position.saved_at(trainer.steps):
            self.position.save(trainer, watch, last=True)
        _check_end(trainer)
        if watch.load_best:
            self.best.take_back(trainer)
        found = self.out.last | self.shown
        if warning := verdict(trainer, self.shown):
            found["warning"] = warning
        if trainer.at.exact and trainer.main:
            log.info("%d of %d steps were exact while λ was far from X", trainer.at.exact, trainer.steps)
        if self.why and trainer.main:
            log.info("%s", self.why)
        return found


def _mean_loss(trainer: Trainer, losses: list[float]) -> dict[str, float]:
    """The mean loss of an epoch's steps, which the last rank knows; on all ranks."""
    found: dict[str, float] = trainer.gather({"loss": sum(losses) / len(losses)} if losses else {})
    return found


def _begin(trainer: Trainer, loader: Any, epochs: int, watch: LoopOptions) -> tuple[int, DataPosition]:
    """The number of batches of an epoch, and where in them to begin; refuses what would fail later."""
    if not len(loader):
        raise InputError(EMPTY)
    trainer.plan_steps(epochs * len(loader))
    if watch.save:
        room.prepare(trainer, Path(watch.save))
    if watch.save and watch.resume:
        return len(loader), DataPosition.load(trainer, Path(watch.save))
    return len(loader), DataPosition()


def _check_end(trainer: Trainer) -> None:
    """A run does not end well with weights or statistics that are not finite."""
    trainer.flush()
    finite.check(trainer, named.tensors(trainer), "training ended with them")


def evaluated(
    trainer: Trainer,
    loader: Any,
    test: Iterable[Any] | None,
    watch: LoopOptions,
    last: bool,
    metrics: evaluation.Metrics | None = None,
) -> dict[str, float]:
    """Figures of the serial model: "train ..." and "test ...", at the end also with BatchNorm statistics taken on X in
    whole batches, which then stay in the model: those of a decoupled method belong to λ, those of a pipeline to
    micro-batches, and follow the last few of them."""
    anew = last and trainer.plan.K > 1 and (trainer.micro > 1 or not trainer.method.exact)
    found: dict[str, float] = {}
    if test is not None:
        again = first_batches(loader, evaluation.RECALIBRATION_BATCHES) if anew else None
        shown = trainer.evaluate(test, recalibrate=again, keep=True, metrics=metrics)
        found |= {f"test {name}": value for name, value in shown.items()}
    elif anew:
        trainer.recalibrate(first_batches(loader, evaluation.RECALIBRATION_BATCHES))
    if test is not None and trainer.average is not None:
        with trainer.average.in_place():
            shown = trainer.evaluate(test, metrics=metrics)
        found |= {f"{AVERAGE}test {name}": value for name, value in shown.items()}
    if watch.train_batches:
        shown = trainer.evaluate(first_batches(loader, watch.train_batches))
        found |= {f"train {name}": value for name, value in shown.items()}
    return found


def first_batches(loader: Any, count: int) -> Iterator[Any]:
    """The first batches of the loader's epoch, also where a resumed run began in the middle of it."""
    sampler: Any = getattr(loader, "sampler", None)
    if hasattr(sampler, "start") and hasattr(sampler, "set_epoch"):
        sampler.set_epoch(sampler.epoch)
    return islice(loader, count)


def loaded(trainer: Trainer, loader: Iterable[Any]) -> Iterator[tuple[Any, float]]:
    """The batches of a loader, with the ms that each was waited for; the watchdog knows when one does not come."""
    began, end = time.perf_counter(), object()
    batches = iter(loader)
    while True:
        with board.away(trainer.steps, board.LOADING.strip("()")):
            batch = next(batches, end)
        if batch is end:
            return
        yield batch, 1e3 * (time.perf_counter() - began)
        began = time.perf_counter()


class DataPosition:
    """How far into the data a run is: the random state that determines the epoch's order, and the current one."""

    def __init__(self) -> None:
        self.start: torch.Tensor | None = None  # at the start of the epoch in which the checkpoint was saved
        self.now: torch.Tensor | None = None
        self.epoch_start = torch.get_rng_state()
        self.last_saved = -1
        self.failed_at: int | None = None  # the step whose checkpoint could not be written, if that was the last one

    def batches(self, trainer: Trainer, loader: Any, epoch: int) -> Iterator[tuple[Any, float]]:
        """The epoch's batches that are not trained on yet, in the order and random state of an unbroken run; with the
        ms that each was waited for."""
        done = trainer.steps % len(loader)
        if self.start is not None and self.now is not None:
            torch.set_rng_state(self.start if done else self.now)
            self.now = self.now if done else None
        share_random(trainer, loader)
        self.epoch_start = torch.get_rng_state()
        sampler: Any = getattr(loader, "sampler", None)
        skip = done
        if hasattr(sampler, "start") and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch, done * loader.batch_size)
            skip = 0
        elif hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        left = len(loader) - (done - skip)
        for i, (batch, waited) in enumerate(loaded(trainer, counted(loader, left))):
            if i < skip:
                continue
            if self.now is not None:
                torch.set_rng_state(self.now)
                self.now = self.start = None
            yield batch, waited

    def save(self, trainer: Trainer, watch: LoopOptions, last: bool) -> None:
        """Write a checkpoint. The first time that it cannot be written, as on a full disk, there will be another try,
        unless it is the last one or `watch.save_strict`."""
        assert watch.save is not None
        extra = {"epoch_start": self.epoch_start, "now": torch.get_rng_state()}
        try:
            save(trainer, Path(watch.save), extra=extra, keep=watch.keep)
        except SaveError as error:
            if last or watch.save_strict or self.failed_at is not None:
                raise
            self.failed_at = trainer.steps
            if trainer.main:
                log.error("%s; training goes on, and ends if the next checkpoint, at step %d, cannot be written either",
                          error, trainer.steps + watch.save_every)  # fmt: skip
            return
        self.last_saved, self.failed_at = trainer.steps, None

    def saved_at(self, step: int) -> bool:
        return self.last_saved == step

    @staticmethod
    def load(trainer: Trainer, folder: Path) -> DataPosition:
        position = DataPosition()
        found = checkpoint.resumable(folder, trainer.control)
        if found is None:
            log.info("no checkpoint in %s: starting from the beginning", folder)
            return position
        with board.away(trainer.steps, "loading a checkpoint"):
            extra = checkpoint.load(trainer, found, verified=True)
        position.start, position.now = extra["epoch_start"], extra["now"]
        position.last_saved = trainer.steps
        log.info("going on from %s: step %d", found, trainer.steps)
        return position
