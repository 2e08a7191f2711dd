"""The loop around a trainer: epochs, evaluation, checkpoints, and what a person wants to see meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.launch import board
from lpcompile.runtime.loop import evaluate as evaluation
from lpcompile.runtime.loop import timeline
from lpcompile.runtime.loop.log import Log

if TYPE_CHECKING:
    from lpcompile.runtime.engine.trainer import Trainer

log = logging.getLogger("lpcompile")


@dataclass(frozen=True)
class Watch:
    """What is kept of a run, and where.

    save, save_every: the folder of checkpoints and the steps between them (0: at the end only); keep: how many stay.
    resume: go on from the newest checkpoint in `save`, where there is one.
    log: a file of JSON lines (or CSV, by its name) with one line every `log_every` steps; tensorboard: a folder.
    trace: a file for a Chrome trace of all ranks (the trainer must have been made with trace=True).
    evaluate_every: epochs between evaluations (0: at the end only). train_batches: so many batches of training data are
    evaluated as well, for training loss and accuracy of the model itself and not of the path through λ.
    """

    save: str | None = None
    save_every: int = 0
    keep: int = 2
    resume: bool = False
    log: str | None = None
    log_every: int = 10
    tensorboard: str | None = None
    trace: str | None = None
    evaluate_every: int = 1
    train_batches: int = 10


def run(
    trainer: Trainer,
    loader: Iterable[Any],
    epochs: int,
    *,
    test: Iterable[Any] | None = None,
    watch: Watch | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train, from the newest checkpoint on where that is asked for; gives the last metrics and evaluation.

    All ranks call it alike. The loader must have a length, and give the same samples in the same order whenever an
    epoch is run again from the same random state.
    """
    watch = watch or Watch()
    if not isinstance(loader, Sized):
        raise UsageError("a loader without a length cannot be resumed; use trainer.fit, or one with len()")
    length = len(loader)
    trainer.plan_steps(epochs * length)
    place = Place()
    if watch.resume and watch.save:
        place = Place.load(trainer, Path(watch.save))
    shown: dict[str, Any] = {}
    with Log(trainer, watch, epochs * length) as out:
        for epoch in range(trainer.steps // length, epochs):
            for batch in place.batches(trainer, loader, epoch):
                metrics = trainer.step(*batch)
                metrics["epoch"] = epoch + 1
                out.step(metrics)
                if on_step is not None:
                    on_step(metrics)
                if watch.save and watch.save_every and trainer.steps % watch.save_every == 0:
                    place.save(trainer, watch)
            last = epoch + 1 == epochs
            if last or (watch.evaluate_every and (epoch + 1) % watch.evaluate_every == 0):
                with board.away(trainer.steps, "evaluation"), torch.random.fork_rng(devices=[]):
                    shown = evaluated(trainer, loader, test, watch, last)
                out.evaluated(epoch + 1, shown)
        if watch.save and trainer.steps and not place.saved_at(trainer.steps):
            place.save(trainer, watch)
        found = out.last | shown
    if watch.trace:
        timeline.write(trainer, Path(watch.trace))
    return found


def evaluated(trainer: Trainer, loader: Any, test: Iterable[Any] | None, watch: Watch, last: bool) -> dict[str, float]:
    """Figures of the serial model: "train ..." and "test ...", at the end also with BatchNorm statistics taken on X,
    which then stay in the model: those of a decoupled method belong to λ."""
    anew = last and not trainer.method.exact and trainer.plan.K > 1
    found: dict[str, float] = {}
    if test is not None:
        again = first_batches(loader, evaluation.BATCHES) if anew else None
        shown = trainer.evaluate(test, recalibrate=again, keep=True)
        found |= {f"test {name}": value for name, value in shown.items()}
    elif anew:
        trainer.recalibrate(first_batches(loader, evaluation.BATCHES))
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


class Place:
    """Where in the data a run is: the random state from which the epoch's order came, and the one after it."""

    def __init__(self) -> None:
        self.start: torch.Tensor | None = None  # at the start of the epoch, where that was before the checkpoint
        self.now: torch.Tensor | None = None
        self.epoch_start = torch.get_rng_state()
        self.last_saved = -1

    def batches(self, trainer: Trainer, loader: Any, epoch: int) -> Iterator[Any]:
        done = trainer.steps % len(loader)
        if self.start is not None and self.now is not None:
            torch.set_rng_state(self.start if done else self.now)
            self.now = self.now if done else None
        self.epoch_start = torch.get_rng_state()
        sampler: Any = getattr(loader, "sampler", None)
        skip = done
        if hasattr(sampler, "start") and hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch, done * loader.batch_size)
            skip = 0
        elif hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for i, batch in enumerate(loader):
            if i < skip:
                continue
            if self.now is not None:
                torch.set_rng_state(self.now)
                self.now = self.start = None
            yield batch

    def save(self, trainer: Trainer, watch: Watch) -> None:
        assert watch.save is not None
        extra = {"epoch_start": self.epoch_start, "now": torch.get_rng_state()}
        checkpoint.save(trainer, Path(watch.save), extra=extra, keep=watch.keep)
        self.last_saved = trainer.steps

    def saved_at(self, step: int) -> bool:
        return self.last_saved == step

    @staticmethod
    def load(trainer: Trainer, folder: Path) -> Place:
        place = Place()
        found = checkpoint.latest(folder)
        if found is None:
            log.info("no checkpoint in %s: starting from the beginning", folder)
            return place
        with board.away(trainer.steps, "loading a checkpoint"):
            extra = checkpoint.load(trainer, found)
        place.start, place.now = extra["epoch_start"], extra["now"]
        place.last_saved = trainer.steps
        log.info("going on from %s: step %d", found, trainer.steps)
        return place
