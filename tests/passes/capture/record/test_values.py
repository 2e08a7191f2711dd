"""Predicates on values and on stack frames."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

import lpcompile.compile
import lpcompile.models.resnet
from lpcompile.passes.capture.record.values import is_library, may_hold, nodes_in, numbers, source_line, stand_in


@pytest.mark.parametrize(
    ("value", "found"), [(torch.ones(1), False), ((torch.ones(1), 2), True), ({"a": [0.5]}, True), ([None], False)]
)
def test_numbers_beside_tensors_are_seen(value: Any, found: bool) -> None:
    assert numbers(value) is found


def test_a_stand_in_is_small_and_a_valid_index() -> None:
    floats = stand_in(torch.empty(3, 2, dtype=torch.float64, requires_grad=True))
    assert floats.abs().max() <= 1 and floats.dtype == torch.float64 and floats.requires_grad
    assert floats.shape == (3, 2) and torch.equal(stand_in(torch.full((2,), 9)), torch.zeros(2, dtype=torch.long))


def test_nodes_are_found_in_nested_arguments() -> None:
    graph = fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    assert nodes_in(((a, 1), {"k": [b, a]})) == [a, b, a]


@pytest.mark.parametrize("value", [1, "a", None, torch.float32, torch.Size([1]), nn.Linear(1, 1), int])
def test_constants_hold_no_tensor(value: Any) -> None:
    assert not may_hold(value) and may_hold([value])


def test_torch_and_lpcompile_are_libraries_but_models_are_user_code() -> None:
    assert is_library(nn.__file__) and is_library("<string>") and is_library(lpcompile.compile.__file__)
    assert not is_library(lpcompile.models.resnet.__file__) and not is_library(__file__)


def test_the_line_is_that_of_the_user() -> None:
    assert source_line().startswith(f"{__file__}:") and source_line().endswith("test_the_line_is_that_of_the_user")
