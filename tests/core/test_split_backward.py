"""A backward in two parts has the gradients of one, whatever a stage looks like."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.core import split_backward


class Shared(nn.Module):
    """One layer twice, with a bias of its own each time: torch puts the first bias into two groups."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        for bias in (self.first, self.second):
            x = x + torch.tanh(F.linear(x, self.weight, bias))
        return x, x.sum(1)


class Aside(nn.Module):
    """An output that no input reaches, made of a weight that also meets one: torch would lose that part of it."""

    def __init__(self):
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.randn(6)), nn.Linear(6, 6)

    def forward(self, x):
        shift = self.scale.exp()
        return torch.tanh(self.linear(x)) + shift, shift * 2


class Alone(nn.Module):
    """A weight that meets no input at all, and a view."""

    def __init__(self):
        super().__init__()
        self.scale, self.linear = nn.Parameter(torch.randn(4, 6)), nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(x).view(2, 12), self.scale.square()


class Passed(nn.Module):
    """An input that goes on as it is, past a weight: its gradient is the very tensor that came in."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return (x,)


class Added(nn.Module):
    """A weight of the activations' shape: its gradient is the very tensor that came in."""

    def __init__(self):
        super().__init__()
        self.linear, self.offset = nn.Linear(6, 6), nn.Parameter(torch.randn(4, 6))

    def forward(self, x):
        return (self.linear(x) + self.offset,)


@pytest.mark.parametrize("make", [Shared, Aside, Alone, Passed, Added])
def test_a_split_backward_is_a_backward(make):
    torch.manual_seed(0)
    module = make()
    weights = list(module.parameters())
    data = [torch.randn(4, 6, requires_grad=True) for _ in range(2)]
    inputs = []
    for x in data:  # plain, accumulated
        ends = module(x)
        torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
        inputs.append(x.grad)
    expected = [p.grad for p in weights]
    module.zero_grad()
    for x, gradient in zip(data, inputs, strict=True):
        leaf = x.detach().requires_grad_()
        ends = module(leaf)
        seeds = [torch.ones_like(end) for end in ends]
        (found,), groups = split_backward.input_part(list(zip(ends, seeds, strict=True)), [leaf], weights, False)
        assert torch.equal(found, gradient)
        split_backward.weight_part(weights, groups)
        for seed in seeds:  # the next message is received here
            seed.fill_(torch.nan)
    assert torch.equal(found, gradient)
    for p, g in zip(weights, expected, strict=True):
        assert p.grad is g is None or torch.equal(p.grad, g)
