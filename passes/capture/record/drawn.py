"""Arrays and lists that forward draws from Python's or numpy's generator, as steps of the graph.

What numpy and torch do with such an array is recorded; Python never sees its values, which the next call draws anew.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import fx

from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.graph.drawn_calls import ByName

METHODS = {"astype", "reshape", "copy", "sum", "mean", "max", "min", "argmax", "argmin", "argsort", "cumsum", "round",
           "transpose", "clip", "flatten", "ravel", "squeeze", "repeat", "any", "all", "item", "tolist"}  # fmt: skip
_OPERATORS = {"less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "equal": "eq", "add": "add",
              "not_equal": "ne", "subtract": "sub", "multiply": "mul", "divide": "truediv", "invert": "invert",
              "floor_divide": "floordiv", "remainder": "mod", "negative": "neg", "bitwise_and": "and_",
              "bitwise_or": "or_", "power": "pow"}  # fmt: skip
MOST = 4096  # numbers of a constant array that a step is given
CONVERSIONS = (torch.tensor, torch.as_tensor, torch.from_numpy, torch.asarray)


class DrawnListener(Protocol):
    def array_made(self, op: str, target: Any, args: Any, kwargs: Any, values: Any) -> Any: ...
    def value_read(self, what: str) -> Unrecordable: ...


class Drawn(NDArrayOperatorsMixin):
    """Stands for an array that is drawn at every call. `samples` are two of this kind: where a shape follows from
    chance, theirs differ, most likely."""

    def __init__(self, listener: DrawnListener, samples: tuple[Any, Any], node: fx.Node) -> None:
        self.listener, self.samples, self.node = listener, samples, node
        self.sample = samples[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sample.shape)

    @property
    def dtype(self) -> Any:
        return self.sample.dtype

    @property
    def size(self) -> int:
        return int(self.sample.size)

    @property
    def ndim(self) -> int:
        return int(self.sample.ndim)

    @property
    def T(self) -> Any:
        return self.transpose()

    def __len__(self) -> int:
        return len(self.sample)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return self._made("call_function", operator.getitem, (self, index), {}, operator.getitem)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in METHODS:
            raise AttributeError(name)

        def method(*args: Any, **kwargs: Any) -> Any:
            function = getattr(numpy.ndarray, name)
            return self._made("call_method", name, (self, *args), kwargs, function)

        return method

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__" or kwargs or ufunc.nout != 1:
            raise self.listener.value_read(f"numpy.{ufunc.__name__}")
        plain = _OPERATORS.get(ufunc.__name__)
        target = getattr(operator, plain) if plain else ByName(f"numpy.{ufunc.__name__}")
        return self._made("call_function", target, inputs, {}, ufunc)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        target = ByName(f"{function.__module__}.{function.__name__}")
        return self._made("call_function", target, args, kwargs, function)

    def _made(self, op: str, target: Any, args: Any, kwargs: Any, function: Any) -> Any:
        values = tuple(function(*sampled(args, i), **sampled(kwargs, i)) for i in (0, 1))
        return self.listener.array_made(op, target, plain(args), plain(kwargs), values)

    def _read(self, *_: Any) -> Any:
        raise self.listener.value_read("forward")

    __array__ = __bool__ = __int__ = __float__ = __index__ = __contains__ = __setitem__ = _read
    __hash__ = object.__hash__


def sampled(value: Any, which: int = 0) -> Any:
    """A value with a sample in place of each drawn array."""
    return _replaced(value, lambda d: d.samples[which])


def holds_drawn(value: Any) -> bool:
    found: list[Drawn] = []
    _replaced(value, found.append)
    return bool(found)


def plain(value: Any) -> Any:
    """Arguments of a step with numpy's types by their names, and short arrays as lists."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (numpy.dtype, type)):
        return numpy.dtype(value).name
    if isinstance(value, numpy.ndarray) and value.size <= MOST and value.dtype in ("int64", "float64", "bool"):
        return value.tolist()
    return value


def _replaced(value: Any, change: Callable[[Drawn], Any]) -> Any:
    if isinstance(value, Drawn):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_replaced(v, change) for v in value)
    if isinstance(value, dict):
        return {k: _replaced(v, change) for k, v in value.items()}
    return value


def as_tensors(value: Any) -> Any:
    """A value with a tensor in place of each drawn array."""
    return _replaced(value, torch.as_tensor)
