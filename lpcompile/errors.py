"""What lpcompile raises: each message says the fact, the values, and what to do next."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import wraps
from typing import ParamSpec, TypeVar


class LpError(Exception):
    """Base of every error that lpcompile raises on purpose."""


class CaptureError(LpError):
    """The model cannot be captured as a graph."""


class PlanError(LpError):
    """No plan satisfies what was asked (too many stages, too little memory, pins that conflict).

    `most` is the largest number of stages that would work, where that is what was wrong.
    """

    def __init__(self, message: str, most: int | None = None) -> None:
        super().__init__(message)
        self.most = most


class GateError(LpError):
    """The compiled program and the user's model differ; the program is refused."""


class InputError(LpError):
    """The program was called with inputs that it was not compiled for."""


class UsageError(LpError):
    """An argument is wrong: a bad name, a bad value, a missing package."""


class ScheduleError(LpError):
    """A schedule that would deadlock, or read a tensor before it is written."""


class TrainingError(LpError):
    """Training cannot go on: values are not finite, a boundary collapsed, ranks do not agree."""


class EmitError(LpError):
    """A program cannot be written as code, or a folder is not what `emit` wrote."""


P = ParamSpec("P")
R = TypeVar("R")

# What other libraries call an option, and what it is called here; the first name that a function has is meant.
ELSEWHERE = {
    "val": ("test",), "valid": ("test",), "validation": ("test",), "eval": ("test",), "val_loader": ("test",),
    "test_loader": ("test",), "eval_loader": ("test",), "eval_dataset": ("test",), "validation_data": ("test",),
    "train_loader": ("loader",), "data": ("loader",), "dataset": ("loader",), "dataloader": ("loader",),
    "criterion": ("loss_fn",), "loss": ("loss_fn",), "lr": ("optimizer",), "learning_rate": ("optimizer",),
    "optim": ("optimizer",), "lr_scheduler": ("scheduler",), "schedule": ("scheduler",),
    "num_epochs": ("epochs",), "n_epochs": ("epochs",), "max_epochs": ("epochs",), "num_train_epochs": ("epochs",),
    "amp": ("autocast",), "precision": ("autocast",), "max_norm": ("clip",), "grad_clip": ("clip",),
    "gradient_clip_val": ("clip",), "max_grad_norm": ("clip",), "accumulate_grad_batches": ("accumulate",),
    "gradient_accumulation_steps": ("accumulate",), "num_microbatches": ("micro", "method"),
    "micro_batches": ("micro", "method"), "microbatches": ("micro", "method"), "chunks": ("micro", "method"),
    "n_microbatches": ("micro", "method"),
    "checkpoint_dir": ("save",), "save_dir": ("save",), "output_dir": ("save",), "save_steps": ("save_every",),
    "resume_from_checkpoint": ("resume",), "save_total_limit": ("keep",), "early_stopping": ("patience",),
    "load_best_model_at_end": ("best",), "metric_for_best_model": ("best",), "logger": ("loggers",),
    "callback": ("callbacks",), "log_dir": ("tensorboard",), "logging_steps": ("log_every",),
    "eval_every": ("evaluate_every",), "gradient_checkpointing": ("checkpoint",), "torch_compile": ("compile",),
    "stages": ("K",), "num_stages": ("K",), "n_stages": ("K",), "world_size": ("K",), "devices": ("K",), "k": ("K",),
    "inputs": ("example_inputs",), "example_input": ("example_inputs",), "x": ("example_inputs",),
    "sample": ("example_inputs",), "example_args": ("example_inputs",), "dummy_input": ("example_inputs",),
    "costs": ("cost",), "schedule_type": ("method",), "budget": ("aux_budget",), "verbose": ("progress",),
}  # fmt: skip


def closest(name: str, names: Collection[str]) -> str:
    """The known name that was most likely meant."""
    meant = next((other for other in ELSEWHERE.get(name, ()) if other in names), None)
    folded = {other.lower(): other for other in names}
    return meant or folded[get_close_matches(name.lower(), folded, n=1, cutoff=0.0)[0]]


def options_checked(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse an option that `function` does not have, before anything else, and name the one that was meant."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is not p.POSITIONAL_ONLY and p.name != "self"]

    @wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                raise UsageError(
                    f"{function.__name__} has no option {name!r}; the closest is {closest(name, names)!r}, all are "
                    f"{', '.join(names)}"
                )
        return function(*args, **kwargs)

    return checked
