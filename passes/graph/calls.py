"""Callables in a captured graph for calls that are not a plain torch function.

Each prints as a name, compares by what it wraps, and pickles, so that graphs can be compared, shown and stored.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch


class Call:
    """A callable that prints as a name, compares by what it wraps, and pickles."""

    def __init__(self, function: Any, *details: Any) -> None:
        self.function, self.details = function, details
        inner = getattr(function, "__name__", type(function).__name__)
        self.__name__ = self.__qualname__ = f"{type(self).__name__}_{inner}"
        self.__module__ = "lpcompile.passes.graph.calls"

    def __repr__(self) -> str:
        return self.__name__

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), self.__name__, self.details))

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return type(self), (self.function, *self.details)


class NoGrad(Call):
    """Call one function as inside `with torch.no_grad():`.

    Kept per node, so that nodes can move to other stages and an outer no_grad still holds.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.function(*args, **kwargs)


class Autocast(Call):
    """Call a function as inside `with torch.autocast(device_type, dtype, enabled):`; several when they were nested."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for device_type, dtype, enabled, cache in self.details:
                stack.enter_context(torch.autocast(device_type, dtype, enabled, cache))
            return self.function(*args, **kwargs)


class Script(Call):
    """Call a TorchScript function, which Python cannot trace."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self.__name__ = self.__qualname__ = f"Script_{function.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Apply(Call):
    """Call a `torch.autograd.Function` with its own backward."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function.apply(*args, **kwargs)


def call_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


def read_attribute(after: Any, module: torch.nn.Module, name: str) -> Any:
    """The attribute `name` of `module`, read after the call that returned `after`."""
    return getattr(module, name)


def call_method(name: str, owner: Any, *args: Any, **kwargs: Any) -> Any:
    return getattr(owner, name)(*args, **kwargs)


def scale(batch: int, multiple: int, offset: int = 0) -> int:
    """`multiple * batch + offset`: a size that follows the batch size."""
    return multiple * batch + offset


def batch_of(tensor: torch.Tensor, dim: int, multiple: int = 1) -> int:
    """The batch size, read off a tensor whose dimension `dim` holds `multiple` times the batch."""
    return tensor.shape[dim] // multiple


def device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.device
