"""Nested values come apart into tensors and go together again, whatever they are nested in."""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lpcompile.passes.graph.tree import flatten
from tests.properties.strategies import examples

Named = namedtuple("Named", ("left", "right"))


@dataclass
class Plain:
    first: Any
    second: Any = None


@dataclass(frozen=True)
class Frozen:
    value: Any


@dataclass(frozen=True, slots=True)
class Slotted:
    value: Any
    other: Any


class Holder:
    """A plain object, as caches of keys and values are."""

    def __init__(self, content: Any) -> None:
        self.content = content


class Labelled(dict[str, Any]):
    """A dict of a class of its own, as are the next two."""


class Row(list[Any]):
    pass


class Point(tuple[Any, ...]):
    pass


class Attributes(dict[str, Any]):
    """Its keys are its attributes, as in many configuration packages."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__ = self


tensors = st.integers(0, 99).map(torch.tensor)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.floats(allow_nan=False),
    st.text("ab*,()' ", max_size=4),
    st.binary(max_size=2),
    st.sampled_from((torch.float32, torch.int64, torch.device("cpu"), torch.strided)),
)
keys = st.one_of(st.text("abc", min_size=1, max_size=2), st.integers(0, 3))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=3)
    return st.one_of(
        items,
        items.map(tuple),
        items.map(deque),
        st.dictionaries(keys, inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3).map(OrderedDict),
        st.dictionaries(keys, inner, max_size=3).map(lambda d: defaultdict(list, d)),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, max_size=3).map(Labelled),
        items.map(Row),
        items.map(Point),
        st.builds(Named, inner, inner),
        st.builds(Plain, inner, inner),
        st.builds(Frozen, inner),
        st.builds(Slotted, inner, inner),
        st.builds(Holder, tensors),
    )


values = st.recursive(st.one_of(tensors, scalars), containers, max_leaves=8)


def parts(value: Any) -> list[Any] | None:
    """Children of a container, with what else makes it what it is; None for a tensor or a scalar."""
    if is_dataclass(value):
        return [getattr(value, f.name) for f in fields(value)]
    if isinstance(value, Holder):
        return [value.content]
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    return list(value) if isinstance(value, (list, tuple, deque)) else None


def same(a: Any, b: Any, tensors_too: bool = True) -> bool:
    """Whether two values are alike: same classes, same keys in the same order, same scalars and the very same tensors.

    Without `tensors_too` any tensor stands for any other, and objects without tensors are alike if they say so.
    """
    if type(a) is not type(b):
        return False
    if not tensors_too and is_dataclass(a) and not tensors_within(a) and not tensors_within(b):
        return bool(a == b)
    if isinstance(a, torch.Tensor):
        return a is b or not tensors_too
    left, right = parts(a), parts(b)
    if left is None or right is None:
        return repr(a) == repr(b)
    return len(left) == len(right) and all(same(x, y, tensors_too) for x, y in zip(left, right, strict=True))


def tensors_within(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for part in parts(value) or () for t in tensors_within(part)]


@examples(300)
@given(values)
def test_a_value_is_rebuilt_as_it_was(value: Any) -> None:
    leaves, tree = flatten(value)
    assert same(tree.unflatten(leaves), value)
    assert same(tree.unflatten(tuple(leaves)), value)
    assert len(leaves) == tree.count == len(flatten(value)[0])


@examples(200)
@given(values)
def test_leaves_come_in_the_order_they_are_written(value: Any) -> None:
    leaves, _ = flatten(value)
    expected = tensors_within(value)
    assert len(leaves) == len(expected) and all(a is b for a, b in zip(leaves, expected, strict=True))


@examples(200)
@given(values)
def test_new_tensors_go_where_the_old_ones_were(value: Any) -> None:
    leaves, tree = flatten(value)
    new = [torch.tensor(1000 + i) for i in range(tree.count)]
    rebuilt = tree.unflatten(new)
    assert same(rebuilt, value, tensors_too=False)
    again, other = flatten(rebuilt)
    assert all(a is b for a, b in zip(again, new, strict=True))
    assert other.text == tree.text == str(tree) and other.count == tree.count
    assert all(a is b for a, b in zip(flatten(value)[0], leaves, strict=True))  # the value itself is as it was


@examples(300)
@given(values, values)
def test_trees_match_exactly_where_all_but_the_tensors_is_the_same(one: Any, other: Any) -> None:
    assert flatten(one)[1].matches(flatten(other)[1]) == same(one, other, tensors_too=False)


@examples(100)
@given(values)
def test_a_tree_matches_that_of_an_equal_value(value: Any) -> None:
    tree = flatten(value)[1]
    twin = flatten(copy.deepcopy(value))[1]
    assert tree.matches(twin) and twin.text == tree.text


class Mode(Enum):
    FAST = 1
    SLOW = 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mode.FAST, Mode.SLOW),
        (Frozen(1), Frozen(2)),
        (frozenset({1}), frozenset({2})),
        (slice(1), slice(2)),
        (torch.relu, torch.tanh),
    ],
    ids=["enum", "dataclass", "frozenset", "slice", "function"],
)
def test_trees_tell_values_without_tensors_apart(one: Any, other: Any) -> None:
    """A call with another enum member, options object or function is another program."""
    for wrap in (lambda v: v, lambda v: {"x": torch.tensor(1), "how": v}):
        assert flatten(wrap(one))[1].matches(flatten(wrap(one))[1])
        assert not flatten(wrap(one))[1].matches(flatten(wrap(other))[1])


@pytest.mark.parametrize(
    "make",
    [
        lambda t: Labelled(a=t),
        lambda t: Row([t]),
        lambda t: Point((t,)),
        pytest.param(lambda t: Attributes(a=t)),
    ],
    ids=["dict", "list", "tuple", "attributes"],
)
def test_subclasses_of_containers_give_their_tensors(make: Any) -> None:
    leaves, tree = flatten(make(torch.tensor(1)))
    assert len(leaves) == tree.count == 1
    new = torch.tensor(2)
    assert same(tree.unflatten([new]), make(new), tensors_too=False)


def test_a_value_that_holds_itself_ends() -> None:
    value: list[Any] = [torch.tensor(1)]
    value.append(value)
    leaves, tree = flatten(value)
    assert len(leaves) == tree.count == 1
