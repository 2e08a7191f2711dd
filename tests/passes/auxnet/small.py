"""Small models and their stages, for tests of single units."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import lpcompile
from lpcompile.passes.split.cuts import cuts
from lpcompile.passes.split.split import Stage, split


class Block(nn.Module):
    """x + b(relu(a(x)))."""

    def __init__(self, width: int = 8, inner: int = 32, inplace: bool = False) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(width, inner), nn.ReLU(inplace), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.b(self.act(self.a(x)))
        return out


def stack(blocks: int = 4, **options: Any) -> nn.Module:
    """A stem, residual blocks, and a last layer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), *[Block(**options) for _ in range(blocks)], nn.Linear(8, 3))


def stages(model: nn.Module, x: torch.Tensor, *after: str) -> tuple[Stage, ...]:
    """The stages of the model, cut after the nodes of these names."""
    captured = lpcompile.capture(model, x)
    legal = {c.after: c for c in cuts(captured) if c.legal}
    return split(captured, [legal[name] for name in after])
