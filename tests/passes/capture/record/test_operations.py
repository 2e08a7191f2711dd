"""Torch functions as fx nodes."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from lpcompile.passes.capture.record.operations import operation, reads_size

X = torch.arange(6.0).reshape(2, 3)


class Seen(TorchFunctionMode):
    """The first function that a piece of code calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, getattr(func, "__name__", ""), args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def first(code: Any) -> Any:
    with Seen() as seen:
        code(X)
    return seen.calls[0]


@pytest.mark.parametrize(
    "code, op, target",
    [
        (lambda x: x[0], "call_function", operator.getitem),
        (lambda x: x.sum(0), "call_method", "sum"),
        (lambda x: torch.sum(x, 0), "call_function", torch.sum),
        (lambda x: F.gelu(x), "call_function", F.gelu),
        (lambda x: x.T, "call_function", getattr),
    ],
)
def test_an_operation_is_written_as_the_user_would(code: Any, op: str, target: Any) -> None:
    assert operation(*first(code))[:2] == (op, target)


@pytest.mark.parametrize("name, result", [("__rsub__", operator.sub), ("__rpow__", operator.pow)])
def test_a_reversed_operator_swaps_its_operands(name: str, result: Any) -> None:
    assert operation(getattr(torch.Tensor, name), name, (X, 2), {}) == ("call_function", result, (2, X), {})


def test_an_operator_is_that_of_python() -> None:
    assert operation(torch.Tensor.__iadd__, "__iadd__", (X, 2), {}) == ("call_function", operator.iadd, (X, 2), {})


def test_an_attribute_is_read_with_getattr() -> None:
    assert operation(*first(lambda x: x.T)) == ("call_function", getattr, (X, "T"), {})


@pytest.mark.parametrize("code", [lambda x: x.shape, lambda x: x.size(0), len, lambda x: x.numel()])
def test_size_reads_are_known(code: Any) -> None:
    func, name, *_ = first(code)
    assert reads_size(func, name)
    func, name, *_ = first(lambda x: x.T)
    assert not reads_size(func, name)
