"""Layers that return a function, which their caller calls later."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import CaptureError
from lpcompile.zoo.check import differences


class Standardized(nn.Module):
    """Reversible instance normalization: the second result takes the statistics of the first back."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True) + 1e-5

        def reverse(y):
            return (y - self.beta) / self.gamma * std + mean

        return (x - mean) / std * self.gamma + self.beta, reverse


class Counted(Standardized):
    """It cannot be recorded step by step either: it counts its calls."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Forecast(nn.Module):
    def __init__(self, norm: type[nn.Module] = Standardized) -> None:
        super().__init__()
        self.norm, self.blocks = norm(), nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        x, reverse = self.norm(x)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return reverse(x)


def test_a_layer_that_returns_a_function_is_recorded_step_by_step():
    model, x = Forecast(), torch.randn(4, 8)
    program = lpcompile.parallelize(model, K=4, example_inputs=x, cost="flops")
    assert program.plan.imbalance < 1.5
    assert differences(model, program, ((x,), {})) == []


def test_a_function_of_a_layer_that_stays_whole_is_refused_by_its_name():
    with pytest.raises(CaptureError, match="norm stays whole and returns a function, which its caller may call"):
        lpcompile.capture(Forecast(Counted), torch.randn(4, 8))
