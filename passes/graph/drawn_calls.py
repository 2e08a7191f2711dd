"""Calls in a captured graph that draw arrays from Python's or numpy's generator, and what Python then does to them."""

from __future__ import annotations

import importlib
from typing import Any

import numpy

from lpcompile.errors import InputError
from lpcompile.passes.graph.calls import Call


class ByName(Call):
    """A function of a library by its name: `numpy.random.permutation`, `random.sample`, `numpy.less`."""

    def __init__(self, function: str) -> None:
        super().__init__(function)
        self.__name__ = self.__qualname__ = f"ByName_{function.rpartition('.')[2]}"
        self.__module__ = "lpcompile.passes.graph.drawn_calls"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner, _, name = self.function.rpartition(".")
        return getattr(importlib.import_module(owner), name)(*args, **kwargs)


class Replayed(Call):
    """A function of the model's own file that draws: it runs at every call, as the model runs it."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self.__module__ = "lpcompile.passes.graph.drawn_calls"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def as_drawn(values: Any, *shape: int) -> Any:
    """Values that were drawn, refused if there are more or fewer than when the model was captured."""
    found = numpy.shape(values)
    if found != shape:
        raise InputError(
            f"forward drew values of shape {found} now and {shape} when the model was captured, so the code after it "
            f"would do something else: keep the module that draws them whole with leaf=[...]"
        )
    return values
