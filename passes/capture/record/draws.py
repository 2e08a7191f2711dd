"""Random choices that Python code in forward reads: numbers of `random` and `numpy.random`, and functions that pick
layers from a list."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Protocol

import torch
from torch import nn

from lpcompile.passes.graph import own_generators

# Functions of a generator that give one number, and the most arguments with which they do.
DRAWS = {"random.random": 0, "random.uniform": 2, "random.gauss": 2, "random.randint": 2, "random.randrange": 3,
         "random.normalvariate": 2, "random.betavariate": 2, "random.expovariate": 1, "random.triangular": 3,
         "numpy.random.rand": 0, "numpy.random.random": 0, "numpy.random.random_sample": 0, "numpy.random.uniform": 2,
         "numpy.random.normal": 2, "numpy.random.randint": 2, "numpy.random.randn": 0, "numpy.random.beta": 2,
         "numpy.random.standard_normal": 0, "numpy.random.exponential": 1, "numpy.random.binomial": 2}  # fmt: skip
# Functions that give arrays, lists, or one number of a list.
ARRAYS = ("random.choice", "random.choices", "random.sample", "numpy.random.choice", "numpy.random.permutation",
          "numpy.random.multinomial", "numpy.random.dirichlet")  # fmt: skip
UNIT = {"random.random", "numpy.random.rand", "numpy.random.random", "numpy.random.random_sample"}  # in [0, 1)
Chooser = tuple[dict[str, Any], str]  # the namespace of a function and its name


@contextmanager
def draws_watched() -> Iterator[list[str]]:
    """Gathers the lines that draw from Python's generators, as `file:line in function` (a profiler does not see
    numpy's). Type checkers such as beartype do, to look at a part of a long list: that is no chance of the model."""
    lines: list[str] = []

    def seen(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and _draws(function):
            at: FrameType | None = frame
            while at is not None and _is_generators(at.f_code.co_filename):  # randint calls getrandbits
                at = at.f_back
            at = at or frame
            lines.append(f"{at.f_code.co_filename}:{at.f_lineno} in {at.f_code.co_name}")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield lines
    finally:
        sys.setprofile(before)


def _draws(function: Any) -> bool:
    """Whether a builtin is one of the two that all functions of Python's generators call."""
    owner = type(getattr(function, "__self__", None))
    return issubclass(owner, random.Random) and function.__name__ in ("random", "getrandbits")


def _is_generators(file: str) -> bool:
    return file in (random.__file__, own_generators.__file__)


def by_type_checks(lines: Sequence[str]) -> bool:
    return bool(lines) and all(line.startswith("<@beartype") for line in lines)


class DrawListener(Protocol):
    def number_drawn(self, name: str, draw: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    def layers_chosen(self, function: Callable[..., Any], layers: Any, args: Any, kwargs: Any) -> Any: ...
    def array_drawn(self, name: str, draw: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    def function_drew(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    def drawing(self, frame: FrameType) -> None: ...
    def from_numpy(self, array: Any) -> torch.Tensor: ...


class Picked:
    """The layers that are kept; each step of an iteration reads the flag of one layer. Without a length: to tell it
    would read all flags at once."""

    def __init__(self, layers: Sequence[Any], flags: torch.Tensor) -> None:
        self.layers, self.flags = layers, flags

    def __iter__(self) -> Iterator[Any]:
        for index, layer in enumerate(self.layers):
            if self.flags[index]:
                yield layer


def chooser_of(frame: FrameType | None, model: nn.Module) -> Chooser | None:
    """The function that a module's forward called with a list of its layers, from a frame inside it."""
    codes = {_code(type(m)) for m in model.modules()}
    while frame is not None and frame.f_back is not None:
        if frame.f_back.f_code in codes:
            name = frame.f_code.co_name
            function = frame.f_globals.get(name)
            first = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
            listed = isinstance(first, (nn.ModuleList, list)) and len(first) > 0
            if getattr(function, "__code__", None) is frame.f_code and listed:
                return frame.f_globals, name
            return None
        frame = frame.f_back
    return None


def _code(kind: type[nn.Module]) -> Any:
    return getattr(kind.forward, "__code__", None)


def drawer_of(frame: FrameType | None) -> Chooser | None:
    """The function that a module's method called and that draws, from a frame inside it."""
    found = None
    while frame is not None:
        first = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
        if isinstance(first, nn.Module):
            return found
        name = frame.f_code.co_name
        if getattr(frame.f_globals.get(name), "__code__", None) is frame.f_code:
            found = frame.f_globals, name
        frame = frame.f_back
    return None


@contextmanager
def draws_patched(
    listener: DrawListener, model: nn.Module, choosers: Sequence[Chooser], drawers: Sequence[Chooser] = ()
) -> Iterator[None]:
    """Route draws of this thread through the listener, under the names by which the model's files know them."""
    thread = threading.get_ident()
    spaces = {id(vars(f)): vars(f) for f in files_of(model)}
    patches: list[tuple[dict[str, Any], str, Any, Any]] = []
    patches.append((vars(torch), "from_numpy", torch.from_numpy, listener.from_numpy))
    for draw, most in {**DRAWS, **dict.fromkeys(ARRAYS, -1)}.items():
        owner, _, name = draw.rpartition(".")
        if owner not in sys.modules:
            continue
        real = getattr(sys.modules[owner], name)

        def number(*args: Any, draw: str = draw, real: Any = real, most: int = most, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return real(*args, **kwargs)
            listener.drawing(sys._getframe(1))
            drawn = listener.array_drawn if len(args) > most or "size" in kwargs else listener.number_drawn
            return drawn(draw, real, args, kwargs)

        patches.append((vars(sys.modules[owner]), name, real, number))
        patches += [(s, n, real, number) for s in spaces.values() for n, value in s.items() if _same(value, real)]
    for space, name in choosers:

        def choose(layers: Any, *args: Any, real: Any = space[name], **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return real(layers, *args, **kwargs)
            return listener.layers_chosen(real, layers, args, kwargs)

        patches.append((space, name, space[name], choose))
    for space, name in drawers:

        def replay(*args: Any, real: Any = space[name], **kwargs: Any) -> Any:
            return (
                listener.function_drew(real, args, kwargs) if threading.get_ident() == thread else real(*args, **kwargs)
            )

        spaces[id(space)] = space
        patches += [(s, n, v, replay) for s in spaces.values() for n, v in s.items() if v is space[name]]
    try:
        for space, name, _, instead in patches:
            space[name] = instead
        yield
    finally:
        for space, name, real, _ in patches:
            space[name] = real


def files_of(model: nn.Module) -> list[Any]:
    """The Python modules that define the classes of a model's modules."""
    names = {kind.__module__ for m in model.modules() for kind in type(m).__mro__}
    return [sys.modules[n] for n in names if n in sys.modules and not n.startswith(("torch.", "builtins"))]


def _same(value: Any, real: Any) -> bool:
    return type(value) is type(real) and value == real
