"""Habits of models as people write them: the program does what the model does, or says why not."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import lpcompile
from lpcompile.errors import CaptureError, GateError, InputError
from lpcompile.zoo.check import differences


class Net(nn.Module):
    """Residual layers; the subclasses differ in what they do beside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class KeepsItsResult(Net):
    """An attribute that is None first and a tensor later."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.ready = None, False

    def forward(self, x):
        self.ready = True
        x = super().forward(x)
        self.last = x.detach()
        return x


class Mixes(Net):
    def forward(self, x):
        if self.training:
            share = numpy.random.beta(0.4, 0.4)
            x = share * x + (1 - share) * x.flip(0)
        return super().forward(x)


class Lends(Net):
    """A layer that is called with weights that another one made."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Linear(8, 64)

    def forward(self, x):
        weights = {"weight": self.maker(x.mean(0)).view(8, 8), "bias": self.layers[0].bias}
        return super().forward(x + torch.func.functional_call(self.layers[0], weights, (x,)))


class Penalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        out = torch.tanh(self.linear(x))
        self.loss = out.square().mean(-1)
        return x + out


class AddsLosses(nn.Module):
    """Losses that blocks keep in themselves, added at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(Penalised() for _ in range(4)), nn.Linear(8, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x), sum(layer.loss for layer in self.layers)


@pytest.mark.parametrize("kind", [KeepsItsResult, Mixes, Lends, AddsLosses])
def test_the_program_does_what_the_model_does(kind):
    model, inputs = kind(), ((torch.randn(4, 8),), {})
    program = lpcompile.parallelize(model, 3, example_inputs=inputs[0], cost="flops")
    for seed in range(3):
        assert differences(model, program, inputs, seed=seed) == []


def test_a_tensor_that_a_module_keeps_is_read_in_the_stage_of_that_module():
    program = lpcompile.parallelize(AddsLosses(), 4, example_inputs=torch.randn(4, 8), cost="flops")
    for stage in program.stages:
        called = {str(n.target) for n in stage.graph.nodes if n.op == "call_module"}
        assert {str(n.target) for n in stage.graph.nodes if n.op == "get_attr"} <= called


def test_packed_sequences_go_from_layer_to_layer():
    class Packs(Net):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.GRU(8, 8, batch_first=True) for _ in range(2))

        def forward(self, x, lengths):
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            packed = self.second(self.first(packed)[0])[0]
            x, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))
            return super().forward(x.mean(1))

    model, x = Packs(), torch.randn(4, 5, 8)
    program = lpcompile.parallelize(model, 2, example_inputs=(x, torch.tensor([5, 2, 3, 1])), cost="flops")
    for lengths in ([5, 2, 3, 1], [1, 1, 4, 5]):
        assert differences(model, program, ((x, torch.tensor(lengths)), {})) == []


class Spike(nn.Module):
    """A neuron that keeps its potential, and is reset by whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.potential = nn.Linear(8, 8), 0.0

    def reset(self):
        self.potential = 0.0

    def forward(self, x):
        self.potential = self.potential + self.linear(x)
        return torch.sigmoid(self.potential)


def test_what_a_caller_does_to_a_module_that_stays_whole_is_refused():
    class Resets(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Spike() for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                layer.reset()
            for layer in self.layers:
                x = x + layer(x)
            return x

    class ResetsBetween(Resets):
        def forward(self, x):
            return super().forward(super().forward(x))

    x = torch.randn(4, 8)
    with pytest.raises(GateError, match="differs in a second: forward resets what a module that stays whole has kept"):
        lpcompile.parallelize(Resets(), 2, example_inputs=x, cost="flops")
    with pytest.raises(CaptureError, match=r"forward sets layers\.\d\.potential, an attribute of a module that stays"):
        lpcompile.parallelize(ResetsBetween(), 2, example_inputs=x, cost="flops")


def test_shapes_that_depend_on_data_are_named_as_the_cause():
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)

        def forward(self, x):
            return self.first(x)[x[:, 0] > 0]

    class Sizes(nn.Sequential):
        def forward(self, x):
            x = super().forward(x)
            return x.reshape(x.size(0) * 8).reshape(-1, 8) * 2

    model = Sizes(nn.Linear(8, 8), Drops())
    with pytest.raises(lpcompile.LpError, match="the shape of a result depends on the values in a tensor"):
        lpcompile.parallelize(model, 1, example_inputs=torch.randn(4, 8), cost="flops")


class Table(nn.Module):
    """A rotary table, made at the first call of a method."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.length = None, 0

    def forward(self, length):
        if self.length < length:
            self.table, self.length = torch.arange(length).float().cos(), length
        return self.table

    def turn(self, x):
        return x * self.forward(x.shape[-1])


class Turns(Net):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()

    def forward(self, x):
        return super().forward(self.table.turn(x))


def test_a_table_that_a_method_keeps_may_be_there_or_not():
    model, x = Turns(), torch.randn(4, 8)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    assert torch.equal(program(x), model(x))
    assert torch.equal(program(x), model(x))


def test_draws_of_a_type_checker_are_no_chance_of_the_model():
    look = {"draw": random.getrandbits}  # as beartype writes its checks
    exec(compile("def look(): draw(32)", "<@beartype(look)>", "exec"), look)

    class Checked(Net):
        def forward(self, x):
            look["look"]()
            return super().forward(x)

    model, x = Checked(), torch.randn(4, 8)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    assert torch.equal(program(x), model(x))


class Skips(Net):
    """Takes another path where a mask masks nothing, as models of transformers do."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x, attention_mask):
        if not is_fake(attention_mask) and attention_mask.all():
            return super().forward(x * self.factor)
        return super().forward(x * attention_mask)


def test_a_mask_that_masks_nothing_may_lead_to_another_kernel_which_the_plan_says():
    inputs = (torch.randn(4, 8), torch.ones(4, 8))
    program = lpcompile.parallelize(Skips(1.0000001), 2, example_inputs=inputs, cost="flops")
    assert program.plan.gate.startswith("bitwise where attention_mask masks something; with one of ones alone")


def test_a_mask_that_masks_nothing_is_named_where_a_program_differs():
    with pytest.raises(GateError, match="attention_mask masks nothing.*leave it out"):
        lpcompile.parallelize(Skips(1.001), 2, example_inputs=(torch.randn(4, 8), torch.ones(4, 8)), cost="flops")


class Scales(Net):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(8)

    def forward(self, x):
        return super().forward(x * self.scale) * self.scale


def test_a_tensor_attribute_may_be_replaced_by_one_of_its_shape():
    model, x = Scales(), torch.randn(4, 8)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    model.scale = torch.full((8,), 3.0)
    assert torch.equal(program(x), model(x))
    model.scale = torch.tensor(3.0)
    with pytest.raises(InputError, match="scale is a tensor of another shape now, or none: compile again"):
        program(x)


def test_a_gradient_taken_in_forward_is_named():
    class Force(Net):
        def forward(self, x):
            x = x.detach().requires_grad_()
            return torch.autograd.grad(super().forward(x).sum(), x, create_graph=True)[0]

    with pytest.raises(CaptureError, match=r"forward takes a gradient itself, by grad\(\)"):
        lpcompile.parallelize(Force(), 2, example_inputs=torch.randn(4, 8), cost="flops")
