"""A model as the profiler takes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import lpcompile
from lpcompile.passes.split.cuts import cuts
from lpcompile.passes.split.units import units


def prepared(model: nn.Module, x: torch.Tensor) -> tuple[Any, Any, list[torch.Tensor]]:
    """The captured model, its units, and its inputs."""
    captured = lpcompile.capture(model, x)
    return captured, units(captured, cuts(captured)), [x]
