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


class Sum(nn.Module):
    """Two weights with one gradient: each needs it in memory of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return (x @ (self.a + self.b),)


class Convolutions(nn.Module):
    """With groups, strides and biases, transposed, one weight that is frozen, one with a hook, one that is computed."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(1, 4, 3, padding=1), nn.Conv1d(4, 4, 3, 2, groups=2, bias=False)
        self.up, self.down = nn.ConvTranspose1d(4, 4, 4, 2), nn.Conv1d(4, 1, 1)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Conv1d(1, 1, 3, padding=1))
        self.down.bias.requires_grad_(False)
        self.up.weight.register_hook(lambda gradient: 2 * gradient)

    def forward(self, x):
        h = torch.tanh(self.first(x[:, None]))
        return (self.normed(self.down(torch.tanh(self.up(self.second(h)))))[:, 0],)


@pytest.mark.parametrize("make", [Shared, Aside, Alone, Passed, Added, Sum, Convolutions])
def test_a_split_backward_is_a_backward(make):
    torch.manual_seed(0)
    module = make()
    weights = [p for p in module.parameters() if p.requires_grad]
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
        split_backward.weight_part(groups)
        for seed in seeds:  # the next message is received here
            seed.fill_(torch.nan)
    assert torch.equal(found, gradient)
    for p, g in zip(weights, expected, strict=True):
        assert p.grad is g is None or torch.equal(p.grad, g)


class BySize(nn.Module):
    """Other operations for one sample than for several, as torch's attention has."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return (x @ self.weight if len(x) == 1 else (x[:, :, None] * self.weight).sum(1),)


def test_gradients_are_added_in_the_order_of_micro_batches_whatever_their_sizes():
    torch.manual_seed(0)
    module, put_off, waiting = BySize(), set(), []
    data = [torch.randn(size, 6, requires_grad=True) for size in (1, 2, 1, 2)]
    for x in data:
        module(x)[0].square().sum().backward()
    expected = module.weight.grad.clone()
    module.zero_grad()
    for x in data:
        (end,) = module(x)
        _, groups = split_backward.input_part([(end, 2 * end.detach())], [x], [module.weight], False, put_off)
        waiting.append(groups)
    for groups in waiting:
        split_backward.weight_part(groups)
    assert torch.equal(module.weight.grad, expected)


def test_the_first_gradient_of_a_weight_is_not_copied():
    """A stage's weights would be read and written once more in every step."""
    layer = nn.Linear(6, 6)
    leaf = torch.randn(4, 6, requires_grad=True)
    end = layer(leaf)
    _, (group,) = split_backward.input_part([(end, torch.ones_like(end))], [leaf], [layer.weight], False)
    made = []
    group.gradients = lambda whole=group.gradients: made.extend(whole()) or made
    split_backward.weight_part([group])
    assert layer.weight.grad.data_ptr() == made[0].data_ptr() and layer.weight.grad.is_contiguous()


def test_a_convolution_asks_autograd_for_nothing(monkeypatch):
    """Before autograd runs one node it walks over all that are below: a quarter of ResNet-110's backward."""
    layers = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 1, 1, bias=False))
    leaf = torch.randn(4, 1, 6, 6, requires_grad=True)
    end = layers(leaf)
    _, groups = split_backward.input_part([(end, torch.ones_like(end))], [leaf], list(layers.parameters()), False)
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **options: pytest.fail("asked"))
    split_backward.weight_part(groups)
    assert len(groups) == 2 and all(p.grad is not None for p in layers.parameters())
