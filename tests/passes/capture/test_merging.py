"""Either of two branches that a draw chooses is a switch of its own, whatever the streams that it changes."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import CaptureError
from lpcompile.zoo.check import differences
from lpcompile.zoo.strangers.drawn import Draws


class Functions(Draws):
    """A draw chooses a function, and after the block a number."""

    def step(self, block, x):
        x = torch.relu(x) if random.random() < 0.5 else torch.tanh(x)
        return block(x) * (2 if torch.rand(1).item() < 0.5 else 3)


class OwnTensors(Draws):
    """Each branch has a parameter, a size and a draw of its own, and one writes in place."""

    def __init__(self):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.randn(32)), nn.Parameter(torch.randn(32))

    def step(self, block, x):
        n = len(x)
        if random.random() < 0.4:
            x = x + 0.1 * torch.rand(n, 1)
            x.mul_(self.gain)
            return x
        return block(x.reshape(n * 2, 16).reshape(n, 32)) + self.shift


class Statistics(Draws):
    """One of two norms, each with running statistics."""

    def block(self):
        return nn.ModuleList([nn.BatchNorm1d(32), nn.BatchNorm1d(32), super().block()])

    def step(self, block, x):
        return block[2](block[0](x) if torch.rand(()) < 0.5 else block[1](x))


class OneSide(Draws):
    """The one branch without gradients, the other only in training."""

    def step(self, block, x):
        if not self.training or torch.rand(()) < 0.5:
            return block(x)
        with torch.no_grad():
            y = block(x)
        return x.flip(1) + y


class Streams(Draws):
    """Two streams, one tensor at first; the branches change one each."""

    def forward(self, x):
        a = b = self.first(x)
        for block in self.blocks:
            if random.random() < 0.4:
                a = block(a)
            else:
                b = block(b) + a
        return self.last(a * b)


@pytest.mark.parametrize("kind", [Functions, OwnTensors, Statistics, OneSide, Streams])
def test_a_draw_chooses_one_of_two_branches(kind):
    torch.manual_seed(0)
    model, inputs = kind(), ((torch.randn(4, 16),), {})
    program = lpcompile.parallelize(model, 4, example_inputs=inputs[0], cost="flops", method="penalty")
    assert program.plan.imbalance < 1.4 and program.plan.batch_free and not program.plan.notes
    for seed in range(8):
        assert differences(model, program, inputs, evaluate=seed < 2, seed=seed) == []
    assert differences(model, program, ((torch.randn(6, 16),), {}), seed=3) == []


class Nested(Draws):
    def step(self, block, x):
        if random.random() < 0.5:
            return block(x) if random.random() < 0.5 else x
        return block(x.flip(1))


class Outputs(Draws):
    """A draw decides what is returned."""

    def forward(self, x):
        out = super().forward(x)
        return out if random.random() < 0.5 else (out, x)


class Loops(Draws):
    def step(self, block, x):
        while random.random() < 0.3:
            x = torch.tanh(x)
        return block(x)


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Nested, "more than parts that run or not, or one of two"), (Outputs, "more than parts that run or not"),
     (Loops, "a loop goes on for as long as it is drawn")],
)  # fmt: skip
def test_what_is_no_choice_of_one_of_two_is_refused_in_words(kind, why):
    with pytest.raises(CaptureError, match=rf"{why}.*\n  at .*test_merging.py"):
        lpcompile.capture(kind(), torch.randn(4, 16))
