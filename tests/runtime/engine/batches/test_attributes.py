"""What a layer keeps from its forward for its backward, with several micro-batches in flight."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.runtime.engine.batches.attributes import Attributes


class Recomputed(torch.autograd.Function):
    """Runs a net again in backward, with the random numbers of the forward."""

    @staticmethod
    def forward(ctx, x, layer):
        ctx.layer = layer
        ctx.save_for_backward(x)
        layer.state = torch.get_rng_state()
        with torch.no_grad():
            return layer.net(x)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad(), torch.random.fork_rng():
            torch.set_rng_state(ctx.layer.state)
            x = ctx.saved_tensors[0].detach().requires_grad_()
            ctx.layer.net(x).backward(gradient)
        return x.grad, None


class Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.state = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5)), None

    def forward(self, x):
        return x + Recomputed.apply(x, self)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layers = nn.Linear(8, 8), nn.ModuleList(Reversible() for _ in range(4))

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return x


def after_a_step(model, method):
    model = copy.deepcopy(model)
    program = lpcompile.parallelize(model, 2, example_inputs=torch.randn(8, 8), cost="flops", method=method)
    torch.manual_seed(5)
    sgd = lambda parameters: torch.optim.SGD(parameters, 1.0)  # noqa: E731
    trainer = program.trainer(lambda out, y: (out - y).square().mean(), optimizer=sgd, method=method, micro=4)
    trainer.step(torch.linspace(-1, 1, 64).reshape(8, 8), torch.ones(8, 8))
    return trainer.state_dict()


@pytest.mark.parametrize("method", ["1f1b", "gpipe", "zb"])
def test_a_backward_draws_what_its_own_forward_drew(method):
    torch.manual_seed(0)
    model = Net()
    wanted, found = after_a_step(model, "bp"), after_a_step(model, method)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


class Layer(nn.Module):
    """What it sets in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.noted, self.late = 0, 0


def test_each_backward_sees_what_its_forward_left_and_then_the_newest_is_back():
    class Stage(nn.Module):
        __module__ = "lpcompile.stage"

        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer()

    layer = (stage := Stage()).layer
    attributes = Attributes(stage)
    for slot in range(3):
        with attributes.noted(slot):
            layer.noted = slot + 1
            if slot == 1:
                layer.late, layer.made = "now", "later"
    with attributes.of(0):
        assert layer.noted == 1 and layer.late == 0 and not hasattr(layer, "made")
    assert (layer.noted, layer.late, layer.made) == (3, "now", "later")
    with attributes.of(2):
        layer.noted = None  # used up
    assert layer.noted is None
    attributes.over(1)
    assert 1 not in attributes.kept
