"""Callables that a captured graph uses where a plain torch function does not say enough.

Each prints as a name, compares by what it wraps, and pickles, so that graphs can be compared, shown and stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class _Call:
    function: Any

    def __post_init__(self) -> None:
        inner = getattr(self.function, "__name__", type(self.function).__name__)
        object.__setattr__(self, "__name__", f"{type(self).__name__}_{inner}")
        object.__setattr__(self, "__qualname__", f"{type(self).__name__}_{inner}")
        object.__setattr__(self, "__module__", "lpcompile.passes.calls")

    def __reduce__(self) -> tuple[type, tuple[Any]]:
        return type(self), (self.function,)


class NoGrad(_Call):
    """Call a function with gradients off: what a `with torch.no_grad():` block did to this one operation.

    Kept per node, so that nodes can move to other stages, and so that an outer no_grad of the user still holds.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self.function(*args, **kwargs)


class Apply(_Call):
    """Call a `torch.autograd.Function` with its own backward."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function.apply(*args, **kwargs)


def call_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)


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


SYMBOLS: dict[str, Callable[..., Any]] = {"batch": batch_of, "device": device_of}
