"""Predicates on values and stack frames for the recorder."""

from __future__ import annotations

import functools
import os
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from lpcompile.passes.graph.tree import SCALARS

_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
_OURS = f"{Path(__file__).parents[3]}{os.sep}"
_AS_USERS = tuple(f"{_OURS}{room}{os.sep}" for room in ("models", "zoo"))  # models count as user code


def numbers(value: Any) -> bool:
    """Whether a result holds numbers or strings beside tensors."""
    if isinstance(value, (tuple, list)):
        return any(map(numbers, value))
    if isinstance(value, dict):
        return any(map(numbers, value.values()))
    return isinstance(value, (int, float, complex, str))


def holds_code(value: Any) -> bool:
    """Whether a result holds functions or generators, which may keep tensors that nobody sees."""
    if isinstance(value, (tuple, list)):
        return any(map(holds_code, value))
    if isinstance(value, dict):
        return any(map(holds_code, value.values()))
    return isinstance(value, (types.FunctionType, types.MethodType, types.GeneratorType, functools.partial))


def stand_in(fake: torch.Tensor) -> torch.Tensor:
    """A real tensor like a fake one: small numbers for floats, zeros (valid indices) for integers."""
    if fake.is_floating_point():
        values = torch.linspace(-1, 1, max(fake.numel(), 1), device=fake.device)[: fake.numel()]
        return values.reshape(fake.shape).to(fake.dtype).requires_grad_(fake.requires_grad)
    return torch.zeros(tuple(fake.shape), dtype=fake.dtype, device=fake.device)


def nodes_in(arguments: Any) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg(arguments, lambda node: found.append(node))
    return found


def may_hold(value: Any) -> bool:
    """Whether a value may contain tensors."""
    return not isinstance(value, (*SCALARS, torch.Size, torch.finfo, torch.iinfo, nn.Module, type))


def is_library(file: str) -> bool:
    """Whether a source file is torch's or lpcompile's, so that messages should not point to it."""
    return file.startswith((_TORCH, "<")) or (file.startswith(_OURS) and not file.startswith(_AS_USERS))


def source_line() -> str:
    """`file:line in function` of the innermost frame of user code."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not is_library(file) and "contextlib" not in file:
            return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
