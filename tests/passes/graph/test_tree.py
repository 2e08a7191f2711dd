"""Nested values, taken apart and put together again; see also tests/properties/test_tree_properties.py."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lpcompile.passes.graph.tree import flatten

Pair = namedtuple("Pair", ("a", "b"))


@dataclass
class Output:
    logits: torch.Tensor
    scale: float = 1.0


class Cache:
    """A plain object that holds tensors, as caches of keys and values do."""

    def __init__(self, *keys: torch.Tensor) -> None:
        self.keys, self.length = list(keys), len(keys)


class Labelled(dict[str, Any]):
    """Not registered with torch's pytree."""


ONE, TWO = torch.ones(1), torch.zeros(2)


@pytest.mark.parametrize(
    "value",
    [ONE, (ONE, [TWO]), {"a": ONE, "b": None}, OrderedDict(a=ONE), Pair(ONE, TWO), Labelled(main=ONE), Output(ONE),
     Cache(ONE, TWO)],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_value_comes_back_with_new_tensors(value: Any) -> None:
    leaves, tree = flatten(value)
    again = tree.unflatten([leaf + 1 for leaf in leaves])
    assert type(again) is type(value) and tree.count == len(leaves)
    assert all(torch.equal(new, old + 1) for new, old in zip(flatten(again)[0], leaves, strict=True))
    assert flatten(again)[1].matches(tree)


def test_what_is_no_tensor_is_kept_and_compared() -> None:
    _, tree = flatten(Output(ONE, 2.0))
    assert tree.constants == (2.0,)
    assert tree.matches(flatten(Output(TWO, 2.0))[1])
    assert not tree.matches(flatten(Output(ONE, 3.0))[1])
    assert not tree.matches(flatten((ONE, 2.0))[1])


def test_nan_equals_itself() -> None:
    assert flatten((ONE, float("nan")))[1].matches(flatten((ONE, float("nan")))[1])


def test_an_object_that_holds_itself_ends() -> None:
    cache = Cache(ONE)
    cache.keys.append(cache)
    leaves, tree = flatten(cache)
    assert len(leaves) == 1 and "..." in str(tree)


def test_modules_and_classes_are_constants() -> None:
    layer = torch.nn.Linear(1, 1)
    leaves, tree = flatten((layer, Cache))
    assert not leaves and tree.unflatten([]) == (layer, Cache)
