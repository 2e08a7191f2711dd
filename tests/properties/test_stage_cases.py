"""Models that the stage properties, or a look beside them, once found to be compiled wrongly."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpcompile import InputError
from tests.properties.recipes import Call, Gate, Recipe, Repeat, Residual
from tests.properties.steps import assert_same, compiled, serial_step

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


def agree(model: nn.Module, program: nn.Module, call: Call) -> None:
    assert_same(serial_step(copy.deepcopy(model), call, seed=6), serial_step(program, call, seed=6))


@pytest.mark.parametrize("name", ["graph", "code", "meta"])
def test_a_block_may_have_the_name_of_something_in_fx(name: str) -> None:
    recipe = Recipe(body=(Residual(), Residual()), name=name)
    agree(model := recipe.build(), compiled(model, 2, recipe.call(2)), recipe.call(2))


def test_a_view_may_be_written_in_place_after_a_boundary() -> None:
    block = Residual(norm="batch view", activation="swish", add="+=")
    recipe = Recipe(body=(Repeat(block),), kind="words", head="words")
    agree(model := recipe.build(), compiled(model, 3, recipe.call(2)), recipe.call(2))


class SharedOutputs(nn.Module):
    """Two outputs share memory; one is made before the other is written."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Any:
        x = x + self.layers[0](x)
        early = x.view(-1)
        x.add_(self.layers[1](x * 2))
        y = x
        for inner in self.layers[2:]:
            y = y + inner(y)
        return y, early, x.view(2, 2, 2)


def test_two_outputs_may_share_memory_that_is_written_late() -> None:
    torch.manual_seed(0)
    call = Call((torch.randn(2, 4),), {})
    agree(model := SharedOutputs(), compiled(model, 3, call), call)


@pytest.mark.xfail(strict=True, raises=InputError, reason="batch.resized takes every input whose leading size is the "
                   "batch for a batched one")  # fmt: skip
def test_an_input_without_a_batch_may_be_as_long_as_the_batch() -> None:
    recipe = Recipe(body=(Gate("gain"), Residual()), inputs=("gain",), gain=4)
    program = compiled(model := recipe.build(), 2, recipe.call(batch=4))
    assert program.plan.batch_free
    agree(model, program, recipe.call(batch=2))


def test_a_block_put_into_eval_mode_after_compiling_is_refused_or_followed() -> None:
    recipe = Recipe(body=(Residual(dropout="functional"), Residual()))
    program = compiled(model := recipe.build(), 2, recipe.call(2))
    model.block0.eval()
    with contextlib.suppress(InputError):
        agree(model, program, recipe.call(2))


class Mode(Enum):
    PLAIN = 1
    HALVED = 2


class Modes(SharedOutputs):
    def forward(self, x: Tensor, mode: Mode) -> Any:
        for inner in self.layers:
            x = x + inner(x) * (1.0 if mode is Mode.PLAIN else 0.5)
        return x


def test_another_enum_member_is_refused_or_followed() -> None:
    call = Call((torch.ones(2, 4), Mode.PLAIN), {})
    program = compiled(model := Modes(), 2, call)
    with contextlib.suppress(InputError):
        agree(model, program, Call((torch.ones(2, 4), Mode.HALVED), {}))


class Labelled(dict[str, Any]):
    """Not registered with torch's pytree."""


class OfLabels(SharedOutputs):
    def forward(self, x: Tensor) -> Any:
        for inner in self.layers:
            x = x + inner(x)
        return Labelled(main=x)


def test_a_model_may_return_a_dict_of_its_own_class() -> None:
    call = Call((torch.ones(2, 4),), {})
    agree(model := OfLabels(), compiled(model, 2, call), call)


@dataclass
class Options:
    scale: float = 1.0


class Scaled(SharedOutputs):
    def forward(self, x: Tensor, options: Options) -> Any:
        for inner in self.layers:
            x = x + inner(x) * options.scale
        return x


def test_an_options_object_changed_in_place_is_refused_or_followed() -> None:
    call = Call((torch.ones(2, 4), Options()), {})
    program = compiled(model := Scaled(), 2, call)
    call.args[1].scale = 0.5
    with contextlib.suppress(InputError):  # serial_step copies the call, which would hide it
        assert torch.equal(model(*call.args), program(*call.args))
