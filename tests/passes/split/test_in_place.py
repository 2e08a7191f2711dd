"""Stages that write ReLUs and sums in place: which ones may, and that nobody can tell."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile import models


class Net(nn.Module):
    """conv → bn → something, between two convolutions; `middle(self, value, x)` is the something."""

    def __init__(self, middle):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn, self.end = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)
        self.act, self.middle = nn.ReLU(), middle

    def forward(self, x):
        return self.end(self.middle(self, self.bn(self.conv(x)), x))


def lean(model, x):
    program = lpcompile.parallelize(model, 1, example_inputs=x, cost="flops")
    return program.stages[0], program.lean_stage(0)


def step(module, x, twin):
    x = x.clone().requires_grad_()
    out = module(x)
    out.square().sum().backward()
    found = [out.detach(), x.grad, *(p.grad for p in twin.parameters())]
    twin.zero_grad(set_to_none=True)
    return found


WRITTEN = {
    "F.relu": (lambda net, v, x: F.relu(v), "relu_"),
    "a method": (lambda net, v, x: v.relu(), "relu_"),
    "a module": (lambda net, v, x: net.act(v), "relu_"),
    "a sum": (lambda net, v, x: v + x, "add_"),
    "a sum, then a ReLU": (lambda net, v, x: F.relu(v.add(x)), "add_"),
}
LEFT = {
    "read twice": lambda net, v, x: F.relu(v) * v,
    "added to itself": lambda net, v, x: v + v,
    "broadcast": lambda net, v, x: v + x.mean(0, keepdim=True),
    "a number": lambda net, v, x: v + 1.0,
    "not the sum's own": lambda net, v, x: x + v,
    "needed by its maker": lambda net, v, x: F.relu(torch.sigmoid(v)),
    "a view": lambda net, v, x: F.relu(v[:, :, ::2]).repeat_interleave(2, 2),
    "another activation": lambda net, v, x: F.gelu(v),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_fresh_tensor_is_written_over(name):
    middle, call = WRITTEN[name]
    model, x = Net(middle), torch.randn(2, 4, 6, 6)
    stage, found = lean(model, x)
    assert call in found._code and call not in stage._code
    assert all(torch.equal(a, b) for a, b in zip(step(stage, x, model), step(found, x, model), strict=True))


@pytest.mark.parametrize("name", LEFT)
def test_what_is_not_certain_stays_as_it_is(name):
    assert lean(Net(LEFT[name]), torch.randn(2, 4, 6, 6))[1] is None


def test_what_a_hook_may_have_put_aside_is_not_written_over():
    model, kept = Net(lambda net, v, x: F.relu(v)), []
    model.bn.register_forward_hook(lambda module, args, out: kept.append(out))
    assert lean(model, torch.randn(2, 4, 6, 6))[1] is None


def test_a_tensor_that_the_model_itself_writes_into_is_left_alone():
    def middle(net, v, x):
        w = v * 2
        y = w.add_(x)
        return F.relu(y) + w  # w is y: a ReLU in its place would change it

    assert lean(Net(middle), torch.randn(2, 4, 6, 6))[1] is None


def test_a_resnet_trains_as_the_model_bit_for_bit_and_follows_its_layers():
    torch.manual_seed(0)
    model, x = models.resnet20(), torch.randn(4, 3, 16, 16)
    twin, y = copy.deepcopy(model), torch.arange(4)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    lean_stages = [program.lean_stage(k) for k in (0, 1)]
    assert sum(stage._code.count("relu_(") for stage in lean_stages) == 19
    assert sum(stage._code.count(".add_(") for stage in lean_stages) == 9
    for net, run in ((twin, twin), (model, lambda x: lean_stages[1](lean_stages[0](x)))):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(3):
            F.cross_entropy(run(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(twin.state_dict().values(), model.state_dict().values(), strict=True))
    model.double()  # new tensors in the same layers
    assert lean_stages[0](x.double()).dtype == torch.float64


@pytest.mark.parametrize("options, there", [({}, True), ({"autocast": torch.bfloat16}, False)])
def test_trainers_run_it_where_sums_keep_their_dtype(options, there):
    program = lpcompile.parallelize(models.resnet20(), 2, example_inputs=torch.randn(4, 3, 16, 16), cost="flops")
    trainer = program.trainer(F.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, 0.1), **options)
    assert all((w.stage.call is not None) == there for w in trainer.workers)
    trainer.switch("bp", autocast=None if options else torch.bfloat16)
    assert all((w.stage.call is None) == there for w in trainer.workers)
