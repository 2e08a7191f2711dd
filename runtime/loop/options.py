"""Options of the training loop: checkpoints, logs, traces, evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LoopOptions:
    """What a run saves, logs and evaluates.

    save, save_every: the folder of checkpoints and the steps between them (0: at the end only); keep: how many stay.
    resume: go on from the newest checkpoint in `save`, if there is one.
    log: a file of JSON lines (or CSV, by its name) with one line every `log_every` steps; tensorboard: a folder.
    trace: a file for a Chrome trace of all ranks (the trainer must have been made with trace=True).
    evaluate_every: epochs between evaluations (0: at the end only). train_batches: batches of training data that are
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
