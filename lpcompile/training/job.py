"""A training run as plain data: what `lpcompile train` was asked for, given to every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lpcompile.core.micro_batches import checked_micro
from lpcompile.errors import TrainingError, UsageError
from lpcompile.planning.link import planner_link
from lpcompile.runtime.checkpoint.room import probe
from lpcompile.runtime.engine.settings import settings
from lpcompile.runtime.launch import launch
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.runtime.methods import DEFAULT, get_method
from lpcompile.runtime.methods.recipe import Recipe, recipe_of, refuse_inexact
from lpcompile.training import data
from lpcompile.training.optimizers import (
    MOMENTUM,
    OPTIMIZERS,
    SCHEDULES,
    WEIGHT_DECAY,
    OptimizerFactory,
    optimizer_factory,
    scheduler_factory,
)
from lpcompile.training.timm_recipe import TimmRecipe


@dataclass(frozen=True)
class Job:
    """Options of a training run. None: a default that depends on the model, the data or the method."""

    model: str
    data: str = "digits"
    K: int = 2
    replicas: int = 1
    method: str = DEFAULT
    exact: bool = False
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
    auxnet: str | None = None  # a smaller model to cut into AuxNets
    as_published: bool = False
    aux_dtype: str | None = None  # "bf16"
    cost: str = "measured"
    link: str | None = None  # between ranks: "measure", or a rate as 100mbit
    plan: str | None = None
    size: int | None = None
    input: str | None = None
    arg: list[str] = field(default_factory=list)  # of the model's constructor, as NAME=VALUE
    seed: int = 0
    device: str = "cpu"
    workers: int | None = None
    channels_last: bool = False
    timeout: float = launch.TIMEOUT
    timm: TimmRecipe = field(default_factory=TimmRecipe)
    options: dict[str, Any] = field(default_factory=dict)
    watch: LoopOptions = field(default_factory=LoopOptions)

    def check(self) -> None:
        """Refuse wrong options before any process is started."""
        if self.exact:
            refuse_inexact(self.recipe)
        for phase in self.recipe:
            settings({**self.options, **phase.options})
            if (method := get_method(phase.method)).torch_schedule:
                micro = {**self.options, **phase.options}.get("micro")
                checked_micro(method, self.K, self.batch // max(self.replicas, 1), micro)
        counts = {"-K": self.K, "--replicas": self.replicas, "--batch": self.batch, "--epochs": self.epochs}
        if min(counts.values()) < 1:
            raise UsageError(" ".join(f"{flag} {n}" for flag, n in counts.items()) + ": all are numbers of 1 or more")
        data.check(self.data, may_fetch=launch.torchrun_rank() is None)  # under torchrun one rank of a machine does
        for name, value, known in (
            ("--optimizer", self.optimizer, OPTIMIZERS),
            ("--schedule", self.schedule, SCHEDULES),
        ):
            if value not in known:
                raise UsageError(f"{name} {value} is not one of {', '.join(known)}")
        planner_link(self.link)
        if self.device.startswith("cuda") and not torch.cuda.is_available():
            raise TrainingError(f"--device {self.device}: torch sees no GPU on this machine; use --device cpu")
        self.timm.check(self.batch // max(self.replicas, 1), not self.data.startswith("text:"))
        if self.stores_samples and self.timm.of_images():
            raise UsageError(f"--method {self.method} stores values of every sample, which must always look the same; "
                             f"leave out {self.timm.flags(self.timm.of_images())}")  # fmt: skip
        self.watch.check()
        if self.watch.save:
            probe(Path(self.watch.save))
        if self.batch % self.replicas:
            raise UsageError(f"--batch {self.batch} cannot be shared by {self.replicas} replicas; give a multiple")

    def facts(self) -> dict[str, str]:
        """Everything that was asked for, by its flag: all ranks must have been asked for the same."""
        given = {**vars(self), **vars(self.watch), **vars(self.timm), **self.options}
        records = ("watch", "timm", "options")
        return {f"option --{n.replace('_', '-')}": str(v) for n, v in given.items() if n not in records}

    @property
    def stores_samples(self) -> bool:
        """Whether the method keeps λ or κ of every sample, for which a sample must always look the same."""
        kappa = self.options.get("kappa", "stored")
        return any(get_method(p.method).keeps_samples(p.options.get("kappa", kappa)) for p in self.recipe)

    @property
    def recipe(self) -> Recipe:
        return recipe_of(self.method)

    def optimizer_factory(self, model: nn.Module | None = None) -> OptimizerFactory:
        if self.timm.opt is not None:
            return self.timm.optimizer(self.lr, self.momentum, self.weight_decay, model)
        return optimizer_factory(self.optimizer, self.lr, self.momentum, self.weight_decay)

    def scheduler_factory(self, total: int) -> Callable[[Any], Any] | None:
        if self.timm.sched is not None:
            return self.timm.scheduler(total // self.epochs, self.epochs)
        return scheduler_factory(self.schedule, self.lr, total)
