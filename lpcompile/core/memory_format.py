"""Models that lie in memory channels last, as `model.to(memory_format=torch.channels_last)` leaves them.

Convolutions are faster on many devices that way. It is the user's choice; what we add to a model follows it.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def lies_channels_last(model: nn.Module) -> bool:
    """Whether some weights lie so, and in no other way at the same time (as those of 1 x 1 convolutions do)."""
    return any(
        p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous()
        for p in model.parameters()
    )


def channels_last(tensor: Tensor) -> Tensor:
    """Images and features in that order, all else as it is."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def laid_out_as(model: nn.Module, module: M) -> M:
    """A module of ours, with its weights as those of the model lie."""
    return in_channels_last(module) if lies_channels_last(model) else module


def in_channels_last(module: M) -> M:
    return module.to(memory_format=torch.channels_last)
