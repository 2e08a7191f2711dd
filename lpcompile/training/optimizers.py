"""Optimizers and learning-rate schedules by name, as factories that a trainer calls for each rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("one-cycle", "cosine", "steps", "constant")
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def optimizer_factory(
    name: str, lr: float, momentum: float = MOMENTUM, weight_decay: float = WEIGHT_DECAY
) -> OptimizerFactory:
    """A factory of the named optimizer, in torch's fused form: on the CPU the default form takes two to three times as
    long."""
    common: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay, "fused": True}

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if name == "adamw":
            return torch.optim.AdamW(parameters, **common)
        return torch.optim.SGD(parameters, momentum=momentum, nesterov=True, **common)

    return make


def scheduler_factory(name: str, lr: float, total: int) -> Callable[[Any], Any] | None:
    """A schedule over `total` steps; None for a constant rate. "steps": a tenth after each third, as for ImageNet."""
    if name == "constant":
        return None
    if name == "cosine":
        return lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    if name == "steps":
        return lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [total // 3, 2 * total // 3], 0.1)
    # its total is exact: one more step than that is an error, so a skewed method's last flush must not count
    return lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, total + 1, cycle_momentum=False)
