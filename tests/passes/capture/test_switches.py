"""Layers that a model skips at random are recorded one by one, and the graph draws as the model does."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import InputError
from lpcompile.passes.graph.calls import chosen
from lpcompile.zoo.check import differences
from lpcompile.zoo.strangers.repositories import PicksLayers, SkipsLayers


class Layer(nn.Module):
    def __init__(self, pair: bool) -> None:
        super().__init__()
        self.up, self.down, self.drop, self.pair = nn.Linear(16, 64), nn.Linear(64, 16), nn.Dropout(0.1), pair

    def forward(self, x):
        out = x + self.drop(self.down(torch.relu(self.up(x))))
        return (out, None) if self.pair else out


class Stack(nn.Module):
    """Layer dropout as transformers writes it."""

    def __init__(self, pair: bool, depth: int = 6) -> None:
        super().__init__()
        self.layers, self.rate, self.pair = nn.ModuleList(Layer(pair) for _ in range(depth)), 0.3, pair

    def forward(self, x):
        states = [x]
        for layer in self.layers:
            if self.training and torch.rand([]) < self.rate:
                continue
            x = layer(x)[0] if self.pair else layer(x)
            states.append(x)
        return x


class Net(nn.Module):
    def __init__(self, stack: nn.Module) -> None:
        super().__init__()
        self.first, self.stack, self.last = nn.Linear(8, 16), stack, nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.stack(self.first(x)))


class Repeats(Stack):
    """A loop that does something else than run or skip a layer."""

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            while torch.rand([]) < self.rate:
                x = x + layer(x)
        return x


@pytest.mark.parametrize("pair", [False, True])
def test_every_layer_is_a_switch_of_its_own(pair, tmp_path):
    model, inputs = Net(Stack(pair)), ((torch.randn(4, 8),), {})
    program = lpcompile.parallelize(model, 3, example_inputs=inputs[0], cost="flops", method="penalty")
    assert program.plan.imbalance < 1.25 and not program.plan.notes
    assert {b.aux.kind for b in program.plan.boundaries} == {"derived"}
    for seed in range(12):
        assert differences(model, program, inputs, evaluate=not seed, seed=seed) == []
    assert differences(model, program, ((torch.randn(7, 8),), {}), seed=3) == []
    program.emit(tmp_path / "program")
    assert " if not " in (tmp_path / "program" / "stage_1.py").read_text()
    loaded = lpcompile.load(tmp_path / "program")
    for seed in range(4):
        assert differences(model, loaded, inputs, owner=loaded.module, seed=seed) == []


def test_an_auxnet_draws_nothing():
    program = lpcompile.parallelize(
        Net(Stack(False)), 2, example_inputs=torch.randn(4, 8), cost="flops", aux_budget=0.5
    )
    before = torch.get_rng_state()
    program.auxnets[0](torch.randn(4, 8, generator=torch.Generator()))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_no_switch_stays_whole_and_the_plan_warns():
    with pytest.warns(UserWarning, match=r"the plan is uneven.*because stack is .* kept whole"):
        program = lpcompile.parallelize(Net(Repeats(False)), 2, example_inputs=torch.randn(4, 8), cost="flops")
    assert any(note.startswith("stack is kept whole") for note in program.plan.notes)
    assert "the plan is uneven" in program.plan.notes[-1]


def test_caches_that_keep_a_stack_whole_are_named():
    """As in OPT and M2M-100 with layer dropout, whose output holds the caches of the layers that ran."""
    model = Net(Repeats(False))
    model.config = SimpleNamespace(use_cache=True)
    with pytest.warns(UserWarning, match=r"stack is kept whole.*set model\.config\.use_cache = False"):
        lpcompile.parallelize(model, 2, example_inputs=torch.randn(4, 8), cost="flops")


class ReadsNumbers(SkipsLayers):
    """Layer dropout by a number that is read off a tensor."""

    def drawn(self) -> float:
        return torch.rand(1).item()

    def forward(self, x):
        x = self.first(x)
        for norm, branch in self.layers:
            if self.training and self.drawn() < self.rate:
                continue
            x = branch(norm(x)) + x
        return self.last(x)


class DrawsWithNumpy(ReadsNumbers):
    def drawn(self) -> float:
        return numpy.random.rand()


class DrawsIntegers(ReadsNumbers):
    def drawn(self) -> float:
        return 0.1 * random.randint(0, 9)


class TwoStreams(SkipsLayers):
    """A reversible stack: without its first layer, both streams are one tensor."""

    def forward(self, x):
        a = b = self.first(x)
        for norm, branch in self.layers:
            if self.training and random.random() < self.rate:
                continue
            a = a + branch(norm(b))
            b = b + torch.tanh(a)
        return self.last(a + b)


class ListsFlags(SkipsLayers):
    """All flags are drawn before the first layer, in evaluation too, where nobody heeds them."""

    def forward(self, x):
        x = self.first(x)
        keep = (torch.rand(len(self.layers)) > self.rate).tolist()
        for i, (norm, branch) in enumerate(self.layers):
            if keep[i] or not self.training:
                x = branch(norm(x)) + x
        return self.last(x)


class Scales(SkipsLayers):
    """What a layer adds is scaled in training alone, after the layer has returned its sum."""

    def __init__(self, rate: float = 0.3) -> None:
        super().__init__(rate=rate)
        self.layers = nn.ModuleList(Layer(False) for _ in range(6))
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            if not self.training:
                x = layer(x)
            elif random.random() >= self.rate:
                x = x + (layer(x) - x) / (1 - self.rate)
        return self.last(x)


KINDS = [SkipsLayers, PicksLayers, ReadsNumbers, DrawsWithNumpy, DrawsIntegers, Scales]


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_forward_is_skipped_step_by_step(kind, tmp_path):
    torch.manual_seed(0)
    model, inputs = kind(rate=0.6), ((torch.randn(4, 16),), {})
    program = lpcompile.parallelize(model, 3, example_inputs=inputs[0], cost="flops", method="penalty")
    assert program.plan.imbalance < 1.25 and not program.plan.notes
    assert {b.aux.kind for b in program.plan.boundaries} == {"derived"}
    for seed in range(8):  # with 6 layers, all are drawn for skipping once in 21 steps
        assert differences(model, program, inputs, seed=seed) == []
    assert differences(model, program, ((torch.randn(7, 16),), {}), seed=3) == []
    program.emit(tmp_path / "program")
    text = (tmp_path / "program" / "stage_1.py").read_text()
    assert "        if " in text and "None" not in text
    loaded = lpcompile.load(tmp_path / "program")
    for seed in range(3):
        assert differences(model, loaded, inputs, owner=loaded.module, seed=seed) == []


def test_flags_that_are_drawn_before_all_layers_are_read_one_by_one():
    torch.manual_seed(0)
    model, inputs = ListsFlags(rate=0.6), ((torch.randn(4, 16),), {})
    program = lpcompile.parallelize(model, 2, example_inputs=inputs[0], cost="flops")
    assert not any("kept whole" in note for note in program.plan.notes)
    for seed in range(8):
        assert differences(model, program, inputs, seed=seed) == []


def test_two_streams_may_be_one_tensor_where_layers_are_skipped():
    model, inputs = TwoStreams(rate=0.6), ((torch.randn(4, 16),), {})
    program = lpcompile.parallelize(model, 2, example_inputs=inputs[0], cost="flops")
    for seed in range(8):
        assert differences(model, program, inputs, seed=seed) == []


def test_an_auxnet_of_skippable_layers_alone_keeps_one_to_learn_with():
    model = nn.Sequential(*[Stack(False, 3) for _ in range(2)])
    program = lpcompile.parallelize(model, 3, example_inputs=torch.randn(4, 16), cost="flops", method="penalty")
    assert all(list(aux.parameters()) for aux in program.auxnets)


def test_a_rate_of_zero_is_no_branch_whoever_draws():
    model = SkipsLayers(rate=0.0)
    captured = lpcompile.capture(model, torch.randn(4, 16))
    assert "switch" not in str(captured.graph).lower() and "draw_random" in str(captured.graph)


def test_what_a_function_picks_is_told_by_its_layers():
    picked = chosen(lambda layers: layers[1:3], 4)
    assert picked.tolist() == [False, True, True, False]
    with pytest.raises(InputError, match="did more than leave out layers"):
        chosen(lambda layers: layers[::-1], 4)


def test_all_layers_may_be_drawn():
    """The one that is kept then is drawn as the model draws it."""
    model, inputs = PicksLayers(rate=0.999), ((torch.randn(4, 16),), {})
    program = lpcompile.parallelize(model, 2, example_inputs=inputs[0], cost="flops")
    assert differences(model, program, inputs, seed=1) == []


def test_numbers_of_python_are_drawn_once_and_in_order():
    program = lpcompile.parallelize(SkipsLayers(), 2, example_inputs=torch.randn(4, 16), cost="flops")
    random.seed(3)
    program(torch.randn(4, 16))
    after = random.random()
    random.seed(3)
    for _ in range(6):
        random.random()
    assert after == random.random()
    assert type(random.random).__name__ == "builtin_function_or_method"  # capture puts it back
