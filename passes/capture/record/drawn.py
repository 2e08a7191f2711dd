"""Arrays and lists that forward draws from Python's or numpy's generator, as steps of the graph.

What numpy and torch do with such an array is recorded; Python never sees its values, which the next call draws anew.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from lpcompile.passes.capture.record import draws
from lpcompile.passes.capture.record.observer import Observation
from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.capture.record.shadow import fake_tensor
from lpcompile.passes.capture.record.values import stand_in
from lpcompile.passes.graph.calls import Chosen, Draw
from lpcompile.passes.graph.drawn_calls import ByName, Replayed, as_drawn
from lpcompile.passes.graph.tree import flatten
from lpcompile.passes.graph.untouched import rng_state, set_rng_state

if TYPE_CHECKING:
    from lpcompile.passes.capture.record.recorder import Recorder

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


class DrawSteps:
    """Hears of every draw, as `draws.draws_patched` tells, and writes it into the recording."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.drew: list[draws.Chooser] = []  # functions that drew, none of them a step
        self._from_numpy = torch.from_numpy

    def number_drawn(self, name: str, draw: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A number of Python's or numpy's generator is a node; what reads it finds a branch.

        Integers are floats, too: a product with one is then computed as Python would."""
        if self.recorder.paused:
            return draw(*args, **kwargs)
        number = self._drawn(Draw(name), (), torch.float64, args, kwargs)
        if name in draws.UNIT:
            self.recorder.ranges.note("rand", (), {}, number)
        return number

    def layers_chosen(self, function: Callable[..., Any], layers: Any, args: Any, kwargs: Any) -> Any:
        """A choice of layers is a node with a truth value for each."""
        if self.recorder.paused:
            return function(layers, *args, **kwargs)
        arguments = (len(layers), *args)
        return draws.Picked(layers, self._drawn(Chosen(function), (len(layers),), torch.bool, arguments, kwargs))

    def drawing(self, frame: Any) -> None:
        """Something draws: the function that does so may have to be one step, if what it does next cannot be seen."""
        found = None if self.recorder.paused else draws.drawer_of(frame)
        self.drew += [found] if found is not None and found not in self.drew else []

    def array_drawn(self, name: str, draw: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return self._drawn_by(ByName(name), draw, args, kwargs)

    def function_drew(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A function that draws is one step; tensors that it is given are stood in for."""
        return self._drawn_by(Replayed(function), function, args, kwargs)

    def _drawn_by(self, target: Any, draw: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.recorder.paused:
            return draw(*args, **kwargs)
        leaves, tree = flatten((args, kwargs))
        generators = rng_state()
        self.recorder.paused = True
        try:
            with _disable_current_modes():
                given, named = tree.unflatten([torch.ones_like(stand_in(t)) for t in leaves])
                values = draw(*given, **named), draw(*given, **named)
        finally:
            self.recorder.paused = False
            set_rng_state(generators)
        args, kwargs = plain(args), plain(kwargs)
        return self.array_made("call_function", target, args, kwargs, values, Observation(random=True))

    def array_made(
        self, op: str, target: Any, args: Any, kwargs: Any, values: Any, seen: Observation | None = None
    ) -> Any:
        """A value that Python draws, or that numpy makes of one: numbers and tensors are recorded as tensors.

        `values` are two that come of different draws."""
        seen = seen or Observation()
        if isinstance(values[0], torch.Tensor):
            mode = self.recorder.shadow.fake_mode
            value = values[0] if mode is None else fake_tensor(values[0], mode)
            self.recorder.writer.emit(op, target, args, kwargs, value, seen)
        else:
            value = self._array(op, target, args, kwargs, values, seen)
        if numpy.shape(values[0]) != numpy.shape(values[1]):
            raise self.recorder.trail.refuse("the size of an array follows from what Python or numpy draws")
        return value

    def _array(self, op: str, target: Any, args: Any, kwargs: Any, values: Any, seen: Observation) -> Any:
        try:
            samples = numpy.asarray(values[0]), numpy.asarray(values[1])
        except ValueError:  # lists in a list, of different lengths
            raise self.value_read("forward") from None
        if not all(s.dtype.kind in "biuf" for s in samples):
            raise self.value_read("forward")
        made = Drawn(self, samples, self.recorder.writer.emit(op, target, args, kwargs, None, seen))
        with self.recorder:
            return made if samples[0].ndim else torch.tensor(made, dtype=torch.float64)

    def from_numpy(self, array: Any) -> torch.Tensor:
        """Torch does not tell its modes of it."""
        return torch.as_tensor(array) if isinstance(array, Drawn) else self._from_numpy(array)

    def value_read(self, what: str) -> Unrecordable:
        return self.recorder.trail.refuse(
            f"{what} reads the values of an array that it draws from Python's or numpy's generator"
        )

    def as_tensor(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A torch function of drawn arrays."""
        if func not in CONVERSIONS:
            with self.recorder:
                return func(*as_tensors(args), **as_tensors(kwargs))
        with _disable_current_modes():
            like = func(*sampled(args), **kwargs)
        out, _ = self.recorder.observe(lambda: torch.empty(like.shape, dtype=like.dtype, device=like.device))
        drawn = self.recorder.writer.emit("call_function", as_drawn, (args[0], *args[0].shape), {}, None, Observation())
        checked = Drawn(self, args[0].samples, drawn)
        self.recorder.writer.emit("call_function", func, (checked, *args[1:]), kwargs, out, Observation())
        return out

    def _drawn(self, target: Any, shape: tuple[int, ...], dtype: torch.dtype, args: Any, kwargs: Any) -> torch.Tensor:
        number: torch.Tensor
        number, seen = self.recorder.observe(lambda: torch.empty(shape, dtype=dtype))
        seen.random = True
        self.recorder.writer.emit("call_function", target, args, kwargs, number, seen)
        return number
