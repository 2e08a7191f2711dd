"""After `untouched`, a model and all generators are as before."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lpcompile.passes.graph.untouched import python_rng_state, rng_state, set_rng_state, untouched


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.calls, self.seen, self.table = 0, [1], torch.zeros(2)
        self.generator = torch.Generator().manual_seed(1)


def disturb(model: Any) -> None:
    model.eval()
    model.calls, model.extra = 3, "new"
    model.seen.append(2)
    model.table.add_(1)
    model.norm.running_mean.add_(1)
    model.norm.running_var = torch.full((2,), 9.0)
    model.layer.weight.grad = torch.ones(2, 2)
    model.layer.register_forward_hook(lambda *_: None)
    torch.rand(3, generator=model.generator)
    torch.rand(3), random.random(), np.random.rand()


def test_everything_is_restored_even_after_an_error() -> None:
    model = Model()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    variance, stream = model.norm.running_var, model.generator.get_state()
    before, python = rng_state(), python_rng_state()
    with pytest.raises(ZeroDivisionError), untouched(model):
        disturb(model)
        raise ZeroDivisionError
    assert model.training and model.norm.training
    assert model.calls == 0 and model.seen == [1] and not hasattr(model, "extra")
    assert torch.equal(model.table, torch.zeros(2)) and model.norm.running_var is variance
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert model.layer.weight.grad is None and not model.layer._forward_hooks
    assert torch.equal(model.generator.get_state(), stream)
    assert torch.equal(torch.get_rng_state(), before["torch"]) and python_rng_state() == python


def test_parameters_are_restored_only_if_named() -> None:
    model = Model()
    weight, bias = model.layer.weight.detach().clone(), model.layer.bias.detach().clone()
    with untouched(model, ["layer.weight", "unknown"]), torch.no_grad():
        model.layer.weight.add_(1)
        model.layer.bias.add_(1)
    assert torch.equal(model.layer.weight, weight) and torch.equal(model.layer.bias, bias + 1)


def test_set_rng_state_repeats_the_draws_of_every_generator() -> None:
    def draws() -> list[float]:
        return [float(torch.rand(())), random.random(), float(np.random.rand())]

    state = rng_state()
    first = draws()
    assert draws() != first
    set_rng_state(state)
    assert draws() == first


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_python_rng_state_changes_with_a_draw_outside_torch_only(draw: Any) -> None:
    before = python_rng_state()
    torch.rand(1)
    assert python_rng_state() == before
    draw()
    assert python_rng_state() != before
