"""Custom autograd functions keep their backward, however they are called."""

from __future__ import annotations

import pytest
import torch
import torch.utils.checkpoint
from torch import nn

import lpcompile


class Round(torch.autograd.Function):
    """Forward rounds, backward hands the gradient through."""

    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Pair(torch.autograd.Function):
    """Two results, and a context that is set up apart."""

    @staticmethod
    def forward(x, factor):
        return x.round() * factor, x + 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, left, right):
        return ctx.factor * left + 2 * right, None


rounded, pair = Round.apply, Pair.apply  # bound before any recording, as torch's documentation does


class Block(nn.Module):
    def __init__(self, call) -> None:
        super().__init__()
        self.lin, self.call = nn.Linear(8, 8), call

    def forward(self, x):
        return x + self.call(self.lin(x))


def under_no_grad(x):
    with torch.no_grad():
        fixed = rounded(x)
    return rounded(x) * fixed


def product(x):
    left, right = pair(x, 3)
    return left * right


class Saves(torch.autograd.Function):
    """Keeps its input, so that the hooks of a checkpoint run while torch has gradients off."""

    @staticmethod
    def forward(x):
        return x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (ctx.saved_tensors[0].abs() < 1)


sign = Saves.apply


def under_checkpoint(x):
    return torch.utils.checkpoint.checkpoint(lambda t: sign(sign(t * 2)), x, use_reentrant=False)


@pytest.mark.parametrize("call", [rounded, lambda x: Round.apply(x), product, under_no_grad, under_checkpoint])
def test_a_function_and_an_alias_of_its_apply_keep_their_gradient(call):
    model = nn.Sequential(*[Block(call) for _ in range(4)])
    program = lpcompile.parallelize(model, 4, example_inputs=torch.randn(4, 8), cost="flops")
    assert program.plan.gate == "bitwise"
    assert Round.forward.__name__ == "forward"  # the class is as it was
