"""Arrays, lists and numbers that forward draws from Python's or numpy's generator are steps of the graph."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import CaptureError, InputError
from lpcompile.passes.graph.drawn_calls import as_drawn
from lpcompile.zoo.check import differences
from lpcompile.zoo.strangers.drawn import KINDS, Draws


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_leaves_four_even_stages(kind, tmp_path):
    torch.manual_seed(0)
    model, inputs = kind(), ((torch.randn(4, 16),), {})
    program = lpcompile.parallelize(model, 4, example_inputs=inputs[0], cost="flops", method="penalty")
    assert program.plan.imbalance < 1.4 and program.plan.batch_free and not program.plan.notes
    for seed in range(8):
        assert differences(model, program, inputs, evaluate=not seed, seed=seed) == []
    assert differences(model, program, ((torch.randn(7, 16),), {}), seed=3) == []
    program.emit(tmp_path / "program")
    loaded = lpcompile.load(tmp_path / "program")
    for seed in range(3):
        assert differences(model, loaded, inputs, owner=loaded.module, seed=seed) == []


def test_generators_stand_after_a_call_where_the_models_do():
    model, x = KINDS[-1](), torch.randn(4, 16)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    after = []
    for call in (model, program):
        random.seed(3)
        numpy.random.seed(3)
        call(x)
        after.append((random.random(), numpy.random.rand()))
    assert after[0] == after[1]


class CountsDraws(Draws):
    """As many features as are drawn: the size of a tensor follows from chance."""

    def step(self, block, x):
        few = numpy.flatnonzero(numpy.random.rand(32) < 0.5)
        return block(x + x[:, torch.from_numpy(few)].sum(1, keepdim=True))


class ReadsDraws(Draws):
    def step(self, block, x):
        return block(x) if 3 in random.sample(range(32), 8) else x


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(CountsDraws, "the size of an array follows from what Python or numpy draws"),
     (ReadsDraws, "forward reads the values of an array that it draws from Python's or numpy's generator")],
)  # fmt: skip
def test_values_that_python_reads_are_refused_with_their_line(kind, reason):
    with pytest.raises(CaptureError, match=rf"{reason}.*\n  at .*test_drawn.py:.*\n.*\n  draw from torch's"):
        lpcompile.capture(kind(), torch.randn(4, 16))


def test_another_number_of_draws_is_refused_at_the_call():
    assert as_drawn([1, 2], 2) == [1, 2]
    with pytest.raises(InputError, match=r"drew values of shape \(3,\) now and \(2,\) when .*keep the module"):
        as_drawn(numpy.arange(3), 2)


class Applies(nn.Module):
    """Runs a layer by chance, else hands on its input, as augmentations do."""

    def __init__(self):
        super().__init__()
        self.fn, self.rate = nn.Linear(16, 16), 1e-9  # hands on its input in the recording

    def forward(self, x):
        for _ in range(int(random.random() < self.rate)):
            x = self.fn(x)
        return x


class Views(Draws):
    """Two random views of one input, as in DINO."""

    def __init__(self):
        super().__init__()
        self.augment = Applies()

    def forward(self, x):
        one, two = self.augment(x), self.augment(x)
        return super().forward(one) + super().forward(two)


def test_the_input_of_a_module_stays_what_it_is_where_the_module_handed_it_on():
    torch.manual_seed(0)
    model, inputs = Views(), ((torch.randn(4, 16),), {})
    program = lpcompile.parallelize(model, 2, example_inputs=inputs[0], cost="flops")
    assert any("augment is kept whole" in note for note in program.plan.notes)
    model.augment.rate = 0.5  # a module that stays whole reads it at every call
    for seed in range(8):
        assert differences(model, program, inputs, evaluate=not seed, seed=seed) == []
