"""The best evaluation of a run: its checkpoint is kept, and training may end when no better one comes."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpcompile.core.system.atomic_file import write_text
from lpcompile.errors import TrainingError, UsageError
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.checkpoint.save import SaveError, everyone, save
from lpcompile.runtime.loop.average import AVERAGE
from lpcompile.runtime.loop.options import LoopOptions

if TYPE_CHECKING:
    from lpcompile.runtime.engine.trainer import Trainer
    from lpcompile.runtime.loop.evaluate import Metrics

log = logging.getLogger("lpcompile")
DEFAULTS = ("test accuracy", "test loss", "train accuracy", "train loss")
KEEP = 1000  # all: of a run before this one, a checkpoint may have a larger step


def check_figure(figure: str | None, metrics: Metrics | None, test: Any) -> None:
    """Refuse a figure that no evaluation has, before training, as far as the names are known by then."""
    own = list(metrics) if isinstance(metrics, dict) else []
    data = ("train", *(("test",) if test is not None else ()))
    known = [f"test {name}" for name in own if test is not None]
    known += [f"{kind} {name}" for kind in reversed(data) for name in ("accuracy", "loss")]
    anything = "test " if callable(metrics) else AVERAGE  # names that are seen only when it is called
    if figure is not None and figure not in known and not figure.startswith((anything, "test recalibrated ")):
        advice = "" if test is not None else "; without test=LOADER only training data are evaluated"
        raise UsageError(f"best={figure!r} is no figure of the evaluations; they have {', '.join(known)}{advice}")


def _read(file: Path) -> tuple[str, float, int]:
    """Figure, value and epoch of a note."""
    try:
        found = json.loads(file.read_text())
        return str(found["figure"]), float(found["value"]), int(found["epoch"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TrainingError(
            f"{file} is broken ({type(error).__name__}: {error}); remove it to look for the best evaluation anew"
        ) from None


class Best:
    """Follows one figure of the evaluations; all ranks have the same figures and decide alike."""

    def __init__(self, watch: LoopOptions) -> None:
        self.on = watch.best is not None or watch.patience > 0 or watch.load_best
        self.watch, self.figure = watch, watch.best
        self.value, self.epoch, self.since = 0.0, 0, 0  # since: evaluations after the best one
        self.saved: Path | None = None
        self.failed = False  # whether the last checkpoint could not be written
        self.folder = Path(watch.save) / checkpoint.BEST if watch.save else None

    def resume(self, epochs: int) -> None:
        """Take over what an earlier part of the run has found, of which so many epochs are done."""
        file = self.folder / checkpoint.NOTE if self.folder is not None else None
        if self.on and file is not None and file.is_file():
            figure, value, epoch = _read(file)
            if epoch <= epochs and self.figure in (None, figure):
                self.figure, self.value, self.epoch = figure, value, epoch
                self.since = (epochs - self.epoch) // max(self.watch.evaluate_every, 1)

    def seen(self, trainer: Trainer, epoch: int, shown: dict[str, float]) -> str:
        """After an evaluation: keep the checkpoint if it is the best; why training should end now, "" if not."""
        if not self.on:
            return ""
        self.figure = self.figure or next((name for name in DEFAULTS if name in shown), None)
        if self.figure not in shown:
            raise UsageError(f"best={self.figure!r} is no figure of the evaluations; they have {', '.join(shown)}")
        value, larger = shown[self.figure], not self.figure.endswith("loss")
        if not self.epoch or (value > self.value if larger else value < self.value):
            before = self.value, self.epoch
            self.value, self.epoch, self.since = value, epoch, 0
            if self.folder is not None and not self._keep(trainer, self.folder):
                self.value, self.epoch = before
            return ""
        self.since += 1
        if 0 < self.watch.patience <= self.since:
            return f"stopped after epoch {epoch}: {self.figure} has not improved for {self.since} evaluations"
        return ""

    def _keep(self, trainer: Trainer, folder: Path) -> bool:
        """Save the checkpoint and remove the one before it; whether that was possible. As with other checkpoints, a
        full disk gets one more try, unless `save_strict`."""

        def replace() -> None:
            write_text(folder / checkpoint.NOTE, json.dumps(self.note()))
            for old in checkpoint.all_in(folder):
                if old != self.saved:
                    shutil.rmtree(old, ignore_errors=True)

        try:
            self.saved = save(trainer, folder, keep=KEEP)
            everyone(trainer, lambda: replace() if trainer.main else None)
        except SaveError as error:
            if self.failed or self.watch.save_strict:
                raise
            self.failed = True
            if trainer.main:
                log.error("%s; training goes on, and ends if the next best checkpoint cannot be written either", error)
            return False
        self.failed = False
        return True

    def note(self) -> dict[str, Any]:
        return {"figure": self.figure, "value": self.value, "epoch": self.epoch} if self.epoch else {}

    def take_back(self, trainer: Trainer) -> None:
        """Load the weights of the best evaluation into the model."""
        if self.folder is not None and self.epoch:
            found = self.saved or checkpoint.find(self.folder)  # of this part of the run, or of one before it
            trainer.load_state_dict(checkpoint.model_state(found, average=(self.figure or "").startswith(AVERAGE)))
