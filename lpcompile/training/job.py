"""A training run as plain data: what `lpcompile train` was asked for, given to every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpcompile.core.micro_batches import checked_micro
from lpcompile.errors import UsageError
from lpcompile.runtime.engine.settings import settings
from lpcompile.runtime.launch import launch
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.runtime.methods import DEFAULT, get_method
from lpcompile.training.recipe import (
    MOMENTUM,
    OPTIMIZERS,
    SCHEDULES,
    WEIGHT_DECAY,
    OptimizerFactory,
    optimizer_factory,
    scheduler_factory,
)


@dataclass(frozen=True)
class Job:
    """Options of a training run. None: a default that depends on the model, the data or the method."""

    model: str
    data: str = "digits"
    K: int = 2
    replicas: int = 1
    method: str = DEFAULT
    epochs: int = 12
    batch: int = 64
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = MOMENTUM
    weight_decay: float = WEIGHT_DECAY
    schedule: str = "one-cycle"
    init: str | None = None
    aux: str | None = None
    aux_budget: float | None = None
    aux_dtype: str | None = None  # "bf16"
    cost: str = "measured"
    plan: str | None = None
    size: int | None = None
    input: str | None = None
    seed: int = 0
    device: str = "cpu"
    workers: int | None = None
    channels_last: bool = False
    timeout: float = launch.TIMEOUT
    options: dict[str, Any] = field(default_factory=dict)
    watch: LoopOptions = field(default_factory=LoopOptions)

    def check(self) -> None:
        """Refuse wrong options before any process is started."""
        get_method(self.method)
        settings(self.options)
        if self.K < 1 or self.replicas < 1:
            raise UsageError(f"-K {self.K} --replicas {self.replicas}: both are numbers of 1 or more")
        if self.data != "digits" and not Path(self.data).is_dir():
            raise UsageError(f"--data {self.data}: there is no such folder; give a folder of images, or digits")
        for name, value, known in (
            ("--optimizer", self.optimizer, OPTIMIZERS),
            ("--schedule", self.schedule, SCHEDULES),
        ):
            if value not in known:
                raise UsageError(f"{name} {value} is not one of {', '.join(known)}")
        if self.watch.resume and not self.watch.save:
            raise UsageError("--resume needs the folder of the checkpoints: --save DIR")
        if self.batch < 1 or self.epochs < 1 or self.batch % self.replicas:
            raise UsageError(f"--batch {self.batch} cannot be shared by {self.replicas} replicas; give a multiple")
        if (method := get_method(self.method)).pipeline:
            checked_micro(method, self.K, self.batch // self.replicas, self.options.get("micro"))

    @property
    def stores_samples(self) -> bool:
        """Whether the method keeps λ or κ of every sample, for which a sample must always look the same."""
        return get_method(self.method).keeps_samples(self.options.get("kappa", "stored"))

    def optimizer_factory(self) -> OptimizerFactory:
        return optimizer_factory(self.optimizer, self.lr, self.momentum, self.weight_decay)

    def scheduler_factory(self, total: int) -> Callable[[Any], Any] | None:
        return scheduler_factory(self.schedule, self.lr, total)
