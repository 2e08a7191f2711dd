"""Options of the training loop: checkpoints, logs, traces, evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from lpcompile.errors import UsageError

COUNTS = {  # the least value of each option that counts, and what it counts
    "save_every": (0, "steps (0: at the end only)"), "keep": (1, "checkpoints, 1 or more"),
    "log_every": (1, "steps, 1 or more"), "evaluate_every": (0, "epochs (0: at the end only)"),
    "train_batches": (0, "batches (0: none)"), "patience": (0, "evaluations (0: never)"),
}  # fmt: skip


@dataclass(frozen=True)
class LoopOptions:
    """What a run saves, logs and evaluates.

    save, save_every: the folder of checkpoints and the steps between them (0: at the end only); keep: how many stay.
    save_strict: a checkpoint that cannot be written (a full disk) ends the run at once; else the next one is tried.
    resume: go on from the newest checkpoint in `save`, if there is one.
    log: a file of JSON lines (or CSV, by its name) with one line every `log_every` steps; tensorboard: a folder.
    trace: a file for a Chrome trace of all ranks (the trainer must have been made with trace=True).
    evaluate_every: epochs between evaluations (0: at the end only). train_batches: batches of training data that are
    evaluated as well, for training loss and accuracy of the model itself and not of the path through λ.
    wandb: a project of Weights & Biases to log to.
    best: a figure of the evaluations, such as "test accuracy" (the largest is best) or "test loss" (the smallest). The
    checkpoint of the best evaluation is kept in the folder `best` of `save`.
    patience: evaluations without a better value of `best` after which training ends; 0: never. Without `best` it
    watches the test accuracy, or the loss where there is none. load_best: end with the best weights in the model.
    """

    save: str | None = None
    save_every: int = 0
    keep: int = 2
    save_strict: bool = False
    resume: bool = False
    log: str | None = None
    log_every: int = 10
    tensorboard: str | None = None
    trace: str | None = None
    evaluate_every: int = 1
    train_batches: int = 10
    wandb: str | None = None
    best: str | None = None
    patience: int = 0
    load_best: bool = False

    def check(self) -> LoopOptions:
        """Return itself, or refuse what could not work."""
        for name, (least, unit) in COUNTS.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise UsageError(f"{name}={value!r} is not a number of {unit}")
        if self.resume and not self.save:
            raise UsageError("--resume needs the folder of the checkpoints: --save DIR (resume=True: save=DIR)")
        if self.save_every and not self.save:
            raise UsageError(f"save_every={self.save_every} needs a folder for the checkpoints: save=DIR (--save DIR)")
        if (self.best or self.load_best) and not (self.save or self.patience):
            raise UsageError("the best checkpoint needs a folder: save=DIR (--save DIR), in which it is DIR/best")
        if self.load_best and not self.save:
            raise UsageError("load_best needs the folder of the checkpoints: save=DIR (--save DIR)")
        if (self.best or self.patience) and not self.evaluate_every:
            raise UsageError("best and patience look at evaluations during training: set evaluate_every to 1 or more")
        if self.wandb and find_spec("wandb") is None:
            raise UsageError("Weights & Biases is not installed: pip install wandb, or log to a file (log=FILE)")
        return self

    def save_after(self, step: int) -> bool:
        """Whether a checkpoint is due after so many steps."""
        return bool(self.save and self.save_every and step % self.save_every == 0)
