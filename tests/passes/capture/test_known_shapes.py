"""Shapes that depend on values which the model's own code fixes, and not its inputs."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import CaptureError
from lpcompile.zoo.check import differences


@functools.lru_cache
def grid(count):
    return torch.arange(count)


class Packed(nn.Module):
    """Images of several sizes as one sequence of patches, with masks from their shapes (NaViT)."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(16, 8))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def mask(self, x, owner):
        return owner < 2

    def forward(self, images):
        counts = torch.tensor([len(i) for i in images])
        owner = torch.repeat_interleave(torch.arange(len(images)), counts)
        x = torch.cat([i + self.places[grid(len(i))] for i in images])
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x[self.mask(x, owner)]


class ByValue(Packed):
    """The mask is of the values: its shape is not known."""

    def mask(self, x, owner):
        return x.sum(1) > 0


def images():
    return ([torch.randn(n, 8) for n in (3, 5, 2)],)


def test_shapes_that_follow_from_constants_are_known():
    for _ in range(2):  # the second time, the grids are cached
        torch.manual_seed(0)
        model = Packed()
        program = lpcompile.parallelize(model, K=3, example_inputs=images(), cost="flops", method="bp")
        assert program.plan.imbalance < 1.25
        assert differences(model, program, (images(), {})) == []


def test_shapes_that_follow_from_the_inputs_are_not():
    with pytest.raises(CaptureError, match="the shape of a result depends on the values in a tensor"):
        lpcompile.capture(ByValue(), images())
