"""Cuts of a model that does more in one mode than in the other."""

from __future__ import annotations

import torch
from torch import nn

import lpcompile


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


class ScalesWhatBlocksAdd(nn.Module):
    """A block returns its own sum, and its caller takes it apart again in training."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = x + (block(x) - x) * torch.rand(()) if self.training else block(x)
        return x


def test_steps_that_one_mode_has_alone_do_not_hide_the_layers_before_them():
    model = ScalesWhatBlocksAdd()
    program = lpcompile.parallelize(model, 4, example_inputs=torch.randn(4, 4), cost="flops", method="bp")
    assert program.plan.gate == "bitwise" and program.plan.imbalance < 1.25
