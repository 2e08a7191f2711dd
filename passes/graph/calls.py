"""Callables in a captured graph for calls that are not a plain torch function.

Each prints as a name, compares by what it wraps, and pickles, so that graphs can be compared, shown and stored.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from lpcompile.errors import InputError


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


def switch(flag: Any, outcome: bool, otherwise: Any, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The module's result if `flag` is `outcome`, else `otherwise`: a layer that is skipped at random."""
    return module(*args, **kwargs) if bool(flag) is outcome else otherwise


class Switched(Call):
    """Call a function if `flag` is `outcome`, else give `otherwise`: a step of a part that is skipped at random."""

    def __call__(self, flag: Any, outcome: bool, otherwise: Any, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs) if bool(flag) is outcome else otherwise


def plain_call(node: Any) -> tuple[Any, tuple[Any, ...]]:
    """The target and the arguments of a step as they are where nothing is skipped at random."""
    if node.target is switch:
        return call_module, tuple(node.args[3:])
    if isinstance(node.target, Switched):
        return node.target.function, tuple(node.args[3:])
    return node.target, tuple(node.args)


class Draw(Call):
    """A number from Python's or numpy's generator as a tensor: `function` is `random.uniform`, ..."""

    def __init__(self, function: str) -> None:
        super().__init__(function)
        self.__name__ = self.__qualname__ = f"Draw_{function.rpartition('.')[2]}"

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        owner, _, name = self.function.rpartition(".")
        number = getattr(importlib.import_module(owner), name)(*args, **kwargs)
        return torch.tensor(number, dtype=torch.float64)


class Chosen(Call):
    """Which of `count` layers a function keeps that picks some of a list at random, as a tensor of truth values."""

    def __call__(self, count: int, *args: Any, **kwargs: Any) -> torch.Tensor:
        return chosen(self.function, count, *args, **kwargs)


def chosen(function: Callable[..., Any], count: int, *args: Any, **kwargs: Any) -> torch.Tensor:
    items = [object() for _ in range(count)]
    kept = list(function(items, *args, **kwargs))
    mask = [any(item is k for k in kept) for item in items]
    if len(kept) != sum(mask) or [item for item, keep in zip(items, mask, strict=True) if keep] != kept:
        raise InputError(f"{function.__name__} did more than leave out layers of a list: keep its caller whole")
    return torch.tensor(mask)


def structure_of(value: Any) -> str:
    """The nesting of lists, tuples and dicts in a value, with * for each tensor."""
    if isinstance(value, torch.Tensor):
        return "*"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {structure_of(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(structure_of, value)) + "]"
    return type(value).__name__


def as_recorded(value: Any, structure: str, path: str) -> Any:
    """What the module `path` returned, refused if it is built otherwise than when the model was captured."""
    found, caller = structure_of(value), path.rpartition(".")[0]
    if found != structure:
        remedy = f"keep its caller whole with leaf=[{caller!r}]" if caller else "let it return the same in every call"
        raise InputError(
            f"{path} returned {found} now and {structure} when the model was captured (* is a tensor), so the code "
            f"after it would do something else: {remedy}"
        )
    return value


def as_read(tensor: Any, recorded: Any, inputs: str) -> None:
    """Refuse inputs of which the code before read another number than `recorded`, which the graph is made for."""
    if type(tensor).__name__ == "FakeTensor" or tensor.is_meta:  # it has no values: a cost is counted
        return
    found = int(tensor) if type(recorded) is int else tensor.tolist()
    if repr(found) != repr(recorded):
        raise InputError(
            f"forward reads {repr(found)[:80]} from the values of {inputs} now and read {repr(recorded)[:80]} when the "
            f"model was compiled; compile again for inputs like these"
        )


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
