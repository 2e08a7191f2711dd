"""The best evaluation of a run: its checkpoint is kept, and training may end when no better one comes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpcompile.core.system.atomic_file import write_text
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.checkpoint.save import save
from lpcompile.runtime.loop.average import AVERAGE
from lpcompile.runtime.loop.options import LoopOptions

if TYPE_CHECKING:
    from lpcompile.runtime.engine.trainer import Trainer
    from lpcompile.runtime.loop.evaluate import Metrics

DEFAULTS = ("test accuracy", "test loss", "train accuracy", "train loss")
NOTE = "best.json"  # beside the checkpoint
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


class Best:
    """Follows one figure of the evaluations; all ranks have the same figures and decide alike."""

    def __init__(self, watch: LoopOptions) -> None:
        self.on = watch.best is not None or watch.patience > 0 or watch.load_best
        self.watch, self.figure = watch, watch.best
        self.value, self.epoch, self.since = 0.0, 0, 0  # since: evaluations after the best one
        self.saved: Path | None = None
        self.folder = Path(watch.save) / "best" if watch.save else None

    def resume(self, epochs: int) -> None:
        """Take over what an earlier part of the run has found, of which so many epochs are done."""
        file = self.folder / NOTE if self.folder is not None else None
        if self.on and file is not None and file.is_file():
            found = json.loads(file.read_text())
            if found["epoch"] <= epochs and self.figure in (None, found["figure"]):
                self.figure, self.value, self.epoch = found["figure"], found["value"], found["epoch"]
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
            self.value, self.epoch, self.since = value, epoch, 0
            if self.folder is not None:
                self.saved = save(trainer, self.folder, keep=KEEP)
                if trainer.main:
                    write_text(self.folder / NOTE, json.dumps(self.note()))
                    for old in checkpoint.all_in(self.folder):
                        if old != self.saved:
                            shutil.rmtree(old, ignore_errors=True)
            return ""
        self.since += 1
        if 0 < self.watch.patience <= self.since:
            return f"stopped after epoch {epoch}: {self.figure} has not improved for {self.since} evaluations"
        return ""

    def note(self) -> dict[str, Any]:
        return {"figure": self.figure, "value": self.value, "epoch": self.epoch} if self.epoch else {}

    def take_back(self, trainer: Trainer) -> None:
        """Load the weights of the best evaluation into the model."""
        if self.folder is not None and self.epoch:
            found = self.saved or checkpoint.find(self.folder)  # of this part of the run, or of one before it
            trainer.load_state_dict(checkpoint.model_state(found, average=(self.figure or "").startswith(AVERAGE)))
