"""Nested state as JSON and tensors, and back."""

from __future__ import annotations

import json
from collections import Counter, deque

import pytest
import torch

from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import plain


def test_plain_data_goes_there_and_back():
    t = torch.randn(2)
    value = {"a": (1, 2.5, None), 3: [True, {"b": t}], "c": Counter({4: 2}), "d": deque([1]), "e": {1, 2},
             "f": torch.bfloat16, "g": float("inf")}  # fmt: skip
    tensors, data = plain.flat(value, "x")
    assert list(tensors) == ["x/3/1/b"] == plain.names(data)
    found = plain.nested(json.loads(json.dumps(data)), tensors)
    assert torch.equal(found[3][1].pop("b"), value[3][1].pop("b"))
    assert found == value and type(found["c"]) is Counter


def test_what_is_no_data_is_refused():
    with pytest.raises(UsageError, match="scheduler/f is a builtin_function_or_method, which a checkpoint cannot hold"):
        plain.flat({"f": len}, "scheduler")


def test_data_of_an_unknown_kind_is_refused():
    with pytest.raises(UsageError, match="data of kind 'frozenset', which is not known"):
        plain.nested({"$": "frozenset", "items": []}, {})


def test_keys_are_texts_or_whole_numbers():
    with pytest.raises(UsageError, match=r"x has the key \(1, 2\), which a checkpoint cannot hold"):
        plain.flat({(1, 2): 3}, "x")
