"""Channels-last models (`model.to(memory_format=torch.channels_last)`): AuxNets and messages follow the model.

Convolutions are faster in this format on many devices; whether to use it is the user's choice.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def lies_channels_last(model: nn.Module) -> bool:
    """Whether some weight is channels last but not contiguous (weights of 1 x 1 convolutions are both)."""
    return any(
        p.dim() == 4 and p.is_contiguous(memory_format=torch.channels_last) and not p.is_contiguous()
        for p in model.parameters()
    )


def channels_last(tensor: Tensor) -> Tensor:
    """Four-dimensional tensors in channels-last order, others unchanged."""
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def laid_out_as(model: nn.Module, module: M) -> M:
    """`module` in the memory format of the model."""
    return in_channels_last(module) if lies_channels_last(model) else module


def in_channels_last(module: M) -> M:
    return module.to(memory_format=torch.channels_last)
