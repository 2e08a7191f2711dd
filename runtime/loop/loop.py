"""The training loop: epochs, evaluation, checkpoints, logs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sized
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
from lpcompile.runtime.loop.options import LoopOptions

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
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Train, from the newest checkpoint on if `watch.resume`; gives the last metrics and evaluation.

    All ranks call it alike. The loader must have a length, and give the same samples in the same order whenever an
    epoch is run again from the same random state.
    """
    watch = watch or LoopOptions()
    if not isinstance(loader, Sized):
        raise UsageError("a loader without a length cannot be resumed; use trainer.fit, or one with len()")
    length = len(loader)
    trainer.plan_steps(epochs * length)
    position = DataPosition()
    if watch.resume and watch.save:
        position = DataPosition.load(trainer, Path(watch.save))
    shown: dict[str, Any] = {}
    with Log(trainer, watch, epochs * length) as out:
        for epoch in range(trainer.steps // length, epochs):
            for batch in position.batches(trainer, loader, epoch):
                metrics = trainer.step(*batch)
                metrics["epoch"] = epoch + 1
                out.step(metrics)
                if on_step is not None:
                    on_step(metrics)
                if watch.save and watch.save_every and trainer.steps % watch.save_every == 0:
                    position.save(trainer, watch)
            last = epoch + 1 == epochs
            if last or (watch.evaluate_every and (epoch + 1) % watch.evaluate_every == 0):
                with board.away(trainer.steps, "evaluation"), torch.random.fork_rng(devices=[]):
                    shown = evaluated(trainer, loader, test, watch, last)
                out.evaluated(epoch + 1, shown)
        if watch.save and trainer.steps and not position.saved_at(trainer.steps):
            position.save(trainer, watch)
        found = out.last | shown
    if watch.trace:
        timeline.write(trainer, Path(watch.trace))
    return found


def evaluated(
    trainer: Trainer, loader: Any, test: Iterable[Any] | None, watch: LoopOptions, last: bool
) -> dict[str, float]:
    """Figures of the serial model: "train ..." and "test ...", at the end also with BatchNorm statistics taken on X,
    which then stay in the model: those of a decoupled method belong to λ."""
    anew = last and not trainer.method.exact and trainer.plan.K > 1
    found: dict[str, float] = {}
    if test is not None:
        again = first_batches(loader, evaluation.RECALIBRATION_BATCHES) if anew else None
        shown = trainer.evaluate(test, recalibrate=again, keep=True)
        found |= {f"test {name}": value for name, value in shown.items()}
    elif anew:
        trainer.recalibrate(first_batches(loader, evaluation.RECALIBRATION_BATCHES))
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


class DataPosition:
    """How far into the data a run is: the random state that determines the epoch's order, and the current one."""

    def __init__(self) -> None:
        self.start: torch.Tensor | None = None  # at the start of the epoch in which the checkpoint was saved
        self.now: torch.Tensor | None = None
        self.epoch_start = torch.get_rng_state()
        self.last_saved = -1

    def batches(self, trainer: Trainer, loader: Any, epoch: int) -> Iterator[Any]:
        """The epoch's batches that are not trained on yet, in the order and random state of an unbroken run."""
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

    def save(self, trainer: Trainer, watch: LoopOptions) -> None:
        assert watch.save is not None
        extra = {"epoch_start": self.epoch_start, "now": torch.get_rng_state()}
        checkpoint.save(trainer, Path(watch.save), extra=extra, keep=watch.keep)
        self.last_saved = trainer.steps

    def saved_at(self, step: int) -> bool:
        return self.last_saved == step

    @staticmethod
    def load(trainer: Trainer, folder: Path) -> DataPosition:
        position = DataPosition()
        found = checkpoint.latest(folder)
        if found is None:
            log.info("no checkpoint in %s: starting from the beginning", folder)
            return position
        with board.away(trainer.steps, "loading a checkpoint"):
            extra = checkpoint.load(trainer, found)
        position.start, position.now = extra["epoch_start"], extra["now"]
        position.last_saved = trainer.steps
        log.info("going on from %s: step %d", found, trainer.steps)
        return position
