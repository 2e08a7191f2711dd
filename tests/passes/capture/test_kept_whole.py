"""Modules that a graph cannot replay stay whole and live."""

from __future__ import annotations

import os
import random
import secrets

import numpy as np
import pytest
import torch
from torch import nn

import lpcompile
from tests.passes.capture.models import Block, Net, run


class Stepper(nn.Module):
    """Kept whole: it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.lin(x) * self.calls


class RandomDepth(nn.Module):
    """Kept whole: it draws an integer that is a size."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        for _ in range(random.randrange(3)):
            x = x + self.lin(x)
        return x


class DataBranch(nn.Module):
    """Kept whole: it branches on a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x) if x.sum() > 0 else x


class OwnChance(nn.Module):
    """Kept whole: it skips its layer by a draw that the states of Python's and numpy's own generators do not show."""

    def __init__(self, go=None) -> None:
        super().__init__()
        self.lin, self.dice, self.numpy, self.go = nn.Linear(4, 4), random.Random(3), np.random.default_rng(3), go

    def forward(self, x):
        return x + self.lin(x) if self.go(self) else x


@pytest.mark.parametrize(
    "go",
    [
        lambda m: m.dice.random() < 0.5,
        lambda m: m.dice.choice([0, 1]),
        lambda m: m.numpy.random() < 0.5,
        lambda m: random.Random().random() < 0.5,
        lambda m: np.random.default_rng().random() < 0.5,
        lambda m: secrets.randbelow(2),
        lambda m: os.urandom(1)[0] < 128,
    ],
)
def test_a_branch_by_a_generator_of_the_models_own_stays_a_branch(go):
    model = nn.Sequential(nn.Linear(4, 4), OwnChance(go), nn.Linear(4, 4), nn.Linear(4, 4))
    captured = lpcompile.capture(model, torch.randn(2, 4))
    assert captured._lp.kept_whole == ("1",)
    assert vars(random.Random).keys().isdisjoint({"random", "getrandbits"}) and os.urandom.__module__ == "posix"
    steady = nn.Sequential(nn.Linear(4, 4), OwnChance(lambda m: True), nn.Linear(4, 4))
    assert lpcompile.capture(steady, torch.randn(2, 4))._lp.kept_whole == ()


@pytest.mark.parametrize("kind, reason", [(Stepper, "sets the attribute"), (RandomDepth, "random generator"),
                                          (DataBranch, "")])  # fmt: skip
def test_modules_that_a_graph_cannot_replay_stay_whole_and_live(kind, reason):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(kind(), nn.ReLU()), nn.Linear(4, 4), nn.Linear(4, 4))
    captured = lpcompile.capture(model, torch.randn(2, 4))
    assert captured._lp.kept_whole == ("1.0",)
    assert any("1.0 is kept whole" in n and reason in n for n in captured._lp.notes)
    for seed in range(6):
        x = torch.randn(3, 4)
        random.seed(seed)
        expected = model(x)
        random.seed(seed)
        if kind is Stepper:
            model[1][0].calls -= 1
        assert torch.equal(captured(x), expected)


def test_layer_drop_of_rate_zero_is_no_branch():
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                if self.training and torch.rand([]) < 0.0:
                    continue
                x = x + layer(x)
            return x + torch.rand_like(x)

    model, x = Dropping(), torch.randn(2, 4)
    captured = lpcompile.capture(model, x)
    assert captured._lp.kept_whole == ()
    assert torch.equal(run(captured, x), run(model, x))  # the draws stay, so the generator advances alike


def test_leaf_keeps_modules_whole_by_name_and_by_class():
    model, x = Net(), torch.randn(2, 3, 8, 8)
    by_class = lpcompile.capture(model, x, leaf=[Block])
    assert "blocks.1" in {n.target for n in by_class.graph.nodes}
    by_name = lpcompile.capture(model, x, leaf=["blocks"])
    assert "blocks" in {n.target for n in by_name.graph.nodes}
    assert torch.equal(run(by_name, x), run(model, x))


def test_a_tensor_that_a_whole_module_leaves_behind_can_be_read():
    class Expert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.aux = nn.Linear(4, 4), None

        def forward(self, x):
            self.aux = x.square().mean()
            return self.lin(x)

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(Expert() for _ in range(3))
            self.head = nn.Linear(4, 4)

        def forward(self, x):
            for expert in self.experts:
                x = x + expert(x)
            return self.head(x), sum(e.aux for e in self.experts)

    model, x = Mixture(), torch.randn(2, 4)
    captured = lpcompile.capture(model, x)
    assert all(torch.equal(a, b) for a, b in zip(captured(x), model(x), strict=True))


class Layers(nn.Module):
    """Kept whole: it skips layers at random, and returns as many tensors as it ran."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.layers, self.rate = nn.ModuleList(nn.Linear(4, 4) for _ in range(6)), rate

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            if self.training and random.random() < self.rate:
                continue
            found.append(torch.tanh(layer(found[-1])))
        return found


class Averages(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.layers, self.heads = Layers(rate), nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        x = torch.stack(self.layers(x)).mean(0)
        for head in self.heads:
            x = torch.relu(head(x))
        return x


def test_a_list_of_varying_length_is_refused_by_the_gate():
    with pytest.raises(lpcompile.GateError, match="layers returned"):
        lpcompile.parallelize(Averages(0.3), 2, example_inputs=torch.randn(4, 4), cost="flops")


def test_a_list_of_another_length_is_refused_at_the_call():
    random.seed(0)
    model, x = Averages(0.3), torch.randn(4, 4)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", gate=False)
    right, refused = 0, 0
    for seed in range(12):
        random.seed(seed)
        wanted = model(x)
        random.seed(seed)
        try:
            right += torch.equal(program(x), wanted)
        except lpcompile.InputError as error:
            assert "layers returned" in str(error)
            refused += 1
    assert right + refused == 12 and refused


class Router(nn.Module):
    """Kept whole: it counts on data, and gives more places in training (mixture of experts)."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.drop = nn.Linear(4, 4), nn.Dropout(0.0)

    def forward(self, x):
        positive = int((x > 0).sum())
        places = 3 if self.training and positive >= 0 else 2
        return self.lin(x)[:, None].expand(-1, places, -1)


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.last = Router(), nn.Linear(4, 4)

    def forward(self, x):
        places = self.router(x)
        return self.last(places.reshape(x.shape[0] * places.shape[1], 4))


def test_a_whole_module_gives_other_shapes_in_evaluation():
    model, x = Routed(), torch.randn(4, 4)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    assert program.plan.gate == "bitwise"
    assert any(note.startswith("router is kept whole") for note in program.plan.notes)
    assert model.training and program.eval()(x).shape == (8, 4)


class RunsAll(torch.autograd.Function):
    """A reversible stack: one function runs all layers, forward and backward."""

    @staticmethod
    def forward(ctx, x, layers):
        ctx.layers = layers
        ctx.save_for_backward(x)
        with torch.no_grad():
            for layer in layers:
                x = layer(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            start = out = ctx.saved_tensors[0].detach().requires_grad_()
            for layer in ctx.layers:
                out = layer(out)
            out.backward(gradient)
        return start.grad, None


class ReversibleStack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x):
        return RunsAll.apply(x, self.layers)


def test_a_reversible_stack_stays_whole_and_the_plan_says_why():
    model = nn.Sequential(nn.Linear(4, 4), ReversibleStack(), nn.Linear(4, 4))
    program = lpcompile.parallelize(model, 3, example_inputs=torch.randn(2, 4), cost="flops", method="bp")
    assert program.plan.imbalance > 1.5
    assert "because 1 is 64% of the work and stays in one piece" in program.plan.notes[-1]
    assert "an autograd function runs its layers" in program.plan.notes[-1]
