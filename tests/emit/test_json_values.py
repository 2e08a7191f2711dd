"""Nested values survive JSON; what cannot is refused, and nothing in a file is called that emit does not write."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from lpcompile import EmitError
from lpcompile.emit.json_values import OPAQUE, decode, encode, tree_from_json, tree_to_json
from lpcompile.passes.graph.tree import flatten


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Point:
    x: int


class Color(enum.Enum):
    RED = 1


def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the classes of this file be found by the name of their module, as those of an installed model are."""
    import sys

    monkeypatch.setitem(sys.modules, "json_values_classes", sys.modules[__name__])
    for kind in (Pair, Point, Color):
        monkeypatch.setattr(kind, "__module__", "json_values_classes")
    monkeypatch.setattr("lpcompile.passes.codegen.text.values._findable", lambda module: True)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2.5, "text", 1 + 2j, [1, (2, 3)], {"a": 1, 2: None}, slice(1, None, 2), torch.float16,
        torch.channels_last, torch.device("cpu"), torch.Size([2, 3]), OrderedDict(b=1, a=2), math.inf, math.sqrt,
    ],
)  # fmt: skip
def test_a_value_survives_json(value: Any) -> None:
    again = decode(json.loads(json.dumps(encode(value, "it"))))
    assert again == value and type(again) is type(value)


def test_classes_of_a_model_survive_json(monkeypatch: pytest.MonkeyPatch) -> None:
    importable(monkeypatch)
    value = {"pair": Pair(1, [2]), "point": Point(3), "color": Color.RED}
    assert decode(json.loads(json.dumps(encode(value, "it")))) == value


def test_a_tensor_keeps_only_its_position() -> None:
    tree = flatten({"a": torch.ones(3), "b": [torch.ones(2), 5]})[1]
    again = tree_from_json(json.loads(json.dumps(tree_to_json(tree, "the output"))))
    assert again.matches(tree)
    assert again.unflatten([1, 2]) == {"a": 1, "b": [2, 5]}


def test_an_opaque_default_equals_nothing() -> None:
    assert decode({OPAQUE: True}) not in (None, True, OPAQUE)


def test_a_local_class_is_refused_with_a_remedy() -> None:
    class Local(NamedTuple):
        x: int

    with pytest.raises(EmitError, match="the output holds .*Local.*define the class at the top level"):
        encode(Local(1), "the output")


def test_an_object_without_fields_is_refused_with_a_remedy() -> None:
    class Handle:
        def __init__(self) -> None:
            pass

    with pytest.raises(EmitError, match="the output holds a .*Handle, .*return tensors in plain containers"):
        encode(Handle(), "the output")


def test_a_file_cannot_have_any_function_called() -> None:
    for data in ({"sequence": ["os", "system"], "items": ["true"]}, {"enum": ["os", "environ"], "name": "HOME"}):
        with pytest.raises(EmitError, match="is not what emit writes there"):
            decode(data)
    with pytest.raises(EmitError, match="is no class"):
        decode({"object": ["os", "system"], "fields": {}})
    with pytest.raises(EmitError, match="is no value that emit writes"):
        decode({"surprise": 1})
    with pytest.raises(EmitError, match="cannot be imported"):
        decode({"class": ["no_such_package", "Thing"]})
