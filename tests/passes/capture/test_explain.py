"""Why a model cannot be captured: the reason, the line, and what to try."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lpcompile.errors import UsageError
from lpcompile.passes.capture.explain import blame, capture_error, check_model, closest, has_meta
from lpcompile.passes.capture.record.refusal import ModuleTrail, Unrecordable


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def explained(error: Unrecordable, *tensors: torch.Tensor) -> str:
    return str(capture_error(Branching(), error, list(tensors), lambda given: (given, {})))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(UsageError, match=r"expected a torch\.nn\.Module, got function; pass the model itself"):
        check_model(lambda x: x)


def test_a_wrapped_model_is_refused_with_the_attribute_to_pass() -> None:
    with pytest.raises(UsageError, match=r"wrapped in DataParallel; pass model\.module"):
        check_model(nn.DataParallel(nn.Linear(1, 1)))


def test_a_scripted_model_is_refused() -> None:
    with pytest.raises(UsageError, match="TorchScript module has no Python forward"):
        check_model(torch.jit.script(nn.Linear(1, 1)))


def test_weights_without_values_are_seen() -> None:
    assert has_meta(nn.Linear(1, 1, device="meta")) and not has_meta(nn.Linear(1, 1))


def test_an_exception_becomes_a_refusal_with_its_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        found = blame(error, ModuleTrail())
    assert found.reason == "ValueError: two"
    assert found.source.startswith(f"{__file__}:") and found.source.endswith(
        "test_an_exception_becomes_a_refusal_with_its_line"
    )


def test_a_refusal_is_blamed_as_it_is() -> None:
    refusal = Unrecordable("inner", "it draws from Python's random")
    assert blame(refusal, ModuleTrail()) is refusal


def test_a_submodule_may_stay_whole() -> None:
    text = explained(Unrecordable("inner", "it branches"), torch.ones(1, 2))
    assert "cannot capture Branching: in module 'inner', it branches" in text
    assert "leaf=['inner'] keeps that module whole" in text and "front_end='specialise'" in text


def test_the_models_own_forward_is_named_with_its_line() -> None:
    text = explained(Unrecordable("", "it branches"), torch.ones(1, 2))
    assert "in the forward of Branching itself, it branches" in text
    assert f"{__file__}:" in text and "move that part of forward into a submodule" in text


def test_a_remedy_takes_the_place_of_general_advice() -> None:
    text = explained(Unrecordable("inner", "it branches", remedy="call it with one sample"), torch.ones(1, 2))
    assert "  call it with one sample" in text and "front_end=" not in text


def test_a_model_that_fails_by_itself_is_not_blamed_on_capture() -> None:
    text = explained(Unrecordable("inner", "it branches"), torch.ones(1, 3))
    assert text.startswith("the model itself fails on the example inputs, before lpcompile does anything: RuntimeError")


def test_close_names_are_offered() -> None:
    assert closest("layr1", ["layer1", "layer2", "head"]) == "; closest: layer1, layer2"
    assert closest("xyz", ["layer1"]) == ""
