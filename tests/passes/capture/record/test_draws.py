"""Draws are routed to a listener under every name by which a model's file knows them, and put back."""

from __future__ import annotations

import random

import numpy
import torch
from torch import nn

from lpcompile.passes.capture.record.draws import Picked, draws_patched
from lpcompile.zoo.strangers import repositories
from lpcompile.zoo.strangers.repositories import PicksLayers


class Listener:
    def number_drawn(self, name, draw, args, kwargs):
        return name, args

    def array_drawn(self, name, draw, args, kwargs):
        return "array", name

    def drawing(self, frame):
        pass

    def from_numpy(self, array):
        return array

    def layers_chosen(self, function, layers, args, kwargs):
        return function.__name__, len(layers), args


def test_draws_and_choices_reach_the_listener_and_are_put_back():
    before = random.random, random.uniform, numpy.random.rand, repositories.some_layers
    with draws_patched(Listener(), PicksLayers(), [(vars(repositories), "some_layers")]):
        assert random.random() == ("random.random", ()) and random.uniform(1, 2) == ("random.uniform", (1, 2))
        assert numpy.random.rand() == ("numpy.random.rand", ())
        assert numpy.random.rand(3) == ("array", "numpy.random.rand")  # more than one number
        assert numpy.random.uniform(size=3) == ("array", "numpy.random.uniform")
        assert random.sample(range(3), 2) == ("array", "random.sample") and torch.from_numpy(7) == 7
        assert repositories.some_layers(nn.ModuleList([nn.Identity()]), 0.5) == ("some_layers", 1, (0.5,))
    assert (random.random, random.uniform, numpy.random.rand, repositories.some_layers) == before


def test_picked_layers_follow_their_flags():
    assert list(Picked("abc", torch.tensor([True, False, True]))) == ["a", "c"]
