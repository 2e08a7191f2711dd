"""Attributes that forward assigns, found by comparing two snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lpcompile.passes.graph.mutation import Change, changes, inside, snapshot


def model() -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    layer: Any = made[1]
    layer.calls, layer.history, layer.nothing, layer.rate = 0, [1], None, float("nan")
    return made


def assign(name: str, value: Any) -> Callable[[nn.Module], None]:
    return lambda module: setattr(module, name, value)


@pytest.mark.parametrize(
    "change, expected",
    [
        (assign("calls", 1), Change("1", "calls", "value")),
        (assign("calls", 0.0), Change("1", "calls", "value")),  # equal, but another type
        (assign("cache", torch.zeros(1)), Change("1", "cache", "tensor")),
        (assign("cache", {"keys": torch.zeros(1)}), Change("1", "cache", "tensor")),
        (assign("running_mean", torch.zeros(2)), Change("1", "running_mean", "buffer")),
        (lambda m: m.history.append(2), Change("1", "history", "value")),
    ],
)
def test_an_assignment_is_found(change: Callable[[Any], None], expected: Change) -> None:
    root = model()
    before = snapshot(root)
    change(root[1])  # type: ignore[index]
    assert changes(before, root, set()) == [expected]
    assert changes(before, root, {"1"}) == []  # a module kept whole replays itself


def test_the_same_values_and_writes_in_place_are_no_assignments() -> None:
    root = model()
    layer: Any = root[1]  # type: ignore[index]
    before = snapshot(root)
    layer.calls, layer.rate, layer.nothing = 0, float("nan"), None
    layer.running_mean.add_(1)
    layer.weight.data.add_(1)
    assert changes(before, root, set()) == []


def test_inside_takes_whole_names_and_not_prefixes_of_them() -> None:
    assert inside("a.b.c", {"a.b"}) and inside("a", {"a"})
    assert not inside("ab", {"a"}) and not inside("", {"a"}) and not inside("a", {"a.b"})
