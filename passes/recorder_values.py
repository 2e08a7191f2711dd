"""Small questions that the recorder asks about values and frames."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from lpcompile.passes.tree import SCALARS

_OWN_CODE = tuple(f"{Path(p).parent}{os.sep}" for p in (torch.__file__, __file__))
_FRONT_DOOR = str(Path(__file__).parent.parent)  # our own files there; models and the zoo below are users' code


def numbers(value: Any) -> bool:
    """Whether a result holds numbers or strings beside tensors."""
    if isinstance(value, (tuple, list)):
        return any(map(numbers, value))
    if isinstance(value, dict):
        return any(map(numbers, value.values()))
    return isinstance(value, (int, float, complex, str))


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
    return not isinstance(value, (*SCALARS, torch.Size, torch.finfo, torch.iinfo, nn.Module, type))


def source_line() -> str:
    """`file:line in function` of the innermost frame that is the user's, not torch's and not ours."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        own = file.startswith((*_OWN_CODE, "<")) or os.path.dirname(file) == _FRONT_DOOR or "contextlib" in file
        if not own:
            return f"{file}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
