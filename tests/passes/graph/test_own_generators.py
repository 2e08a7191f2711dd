"""Draws of generators other than Python's and numpy's own."""

from __future__ import annotations

import os
import random
import threading

import numpy as np
import pytest
from torch import nn

from lpcompile.passes.graph import own_generators
from lpcompile.passes.graph.own_generators import draws_seen, generators_in, restore, saved, set_state, state_of


class Dice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.python, self.numpy, self.old = random.Random(1), np.random.default_rng(1), np.random.RandomState(1)


@pytest.mark.parametrize("draw", [
    lambda m: m.python.random(), lambda m: m.python.shuffle([1, 2, 3]), lambda m: m.numpy.random(),
    lambda m: m.old.rand(), lambda m: random.SystemRandom().random(), lambda m: os.urandom(1),
    lambda m: random.Random().random(), lambda m: np.random.default_rng().random(),
])  # fmt: skip
def test_a_draw_is_seen_during_and_after_a_forward(draw) -> None:
    model = Dice()
    before = own_generators.state()
    with draws_seen(model, []):
        first = own_generators.state()
        draw(model)
        assert own_generators.state() != first
    assert own_generators.state() != before


def test_what_is_restored_counts_as_not_drawn() -> None:
    model = Dice()
    before = own_generators.state()
    with draws_seen(model, []):
        kept = saved()
        drawn = [model.python.random(), model.numpy.random(), model.old.rand(), os.urandom(1)]
        restore(kept)
        assert [model.python.random(), model.numpy.random(), model.old.rand()] == drawn[:3]
        restore(kept)
    assert own_generators.state() == before


def test_draws_of_pythons_own_generator_and_of_other_threads_are_not_counted() -> None:
    before = own_generators.state()
    with draws_seen(Dice(), []):
        random.random()
        random.shuffle([1, 2, 3])
        np.random.default_rng(3)
        other = threading.Thread(target=os.urandom, args=(1,))
        other.start()
        other.join(timeout=10)
    assert own_generators.state() == before


def test_classes_are_as_before_also_after_an_error() -> None:
    real = os.urandom, random.SystemRandom.random, np.random.default_rng
    with pytest.raises(KeyError), draws_seen(Dice(), []):
        raise KeyError
    assert (os.urandom, random.SystemRandom.random, np.random.default_rng) == real
    assert vars(random.Random).keys().isdisjoint({"random", "getrandbits"})


def test_generators_are_found_and_set_back_and_that_of_the_system_has_no_state() -> None:
    model = Dice()
    found = generators_in([model.python, model.numpy, model.old, random.SystemRandom(), model.python, 3])
    assert found == [model.python, model.numpy, model.old]
    for generator in found:
        state = state_of(generator)
        first = generator.random() if generator is not model.old else generator.rand()
        set_state(generator, state)
        assert (generator.random() if generator is not model.old else generator.rand()) == first
