"""Shapes of results on fake tensors, by formula, for operators that are in most models.

torch runs Python code of its own for each new shape, which takes a millisecond or more for these operators (a BatchNorm
becomes about twenty others): half of a first recording. A formula gives None where a call is unusual, and torch then
computes (or refuses) it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


@dataclass(frozen=True)
class Result:
    """A tensor of new memory, or a view of the tensor argument with the index `source`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device
    source: int | None = None


def fake_results(func: Any, args: Sequence[Any], kwargs: Any) -> list[Result] | None:
    """What an operator gives for these arguments; None if no formula says."""
    formula = FORMULAS.get(func)
    return None if formula is None or kwargs else formula(*args)


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def _view(x: Any, size: Sequence[int]) -> list[Result] | None:
    known = math.prod(s for s in size if s != -1)
    if not _is_dense(x) or known <= 0 or x.numel() % known or list(size).count(-1) > 1:
        return None
    shape = tuple(x.numel() // known if s == -1 else s for s in size)
    if math.prod(shape) != x.numel():
        return None
    return [Result(shape, dense(shape), x.storage_offset(), x.dtype, x.fake_device, 0)]


def _addmm(bias: Any, left: Any, right: Any) -> list[Result] | None:
    if not _are_floats(bias, left, right) or (bias.dim(), left.dim(), right.dim()) != (1, 2, 2):
        return None
    shape = (int(left.shape[0]), int(right.shape[1]))
    if left.shape[1] != right.shape[0] or bias.shape[0] != shape[1] or not math.prod(shape):
        return None
    return [_new(shape, left)]


def _layer_norm(x: Any, size: Sequence[int], weight: Any, bias: Any, eps: float) -> list[Result] | None:
    given = [t for t in (weight, bias) if t is not None]
    if not _are_floats(x, *given) or not _is_dense(x) or not size or len(size) > x.dim():
        return None
    kept, ones = tuple(x.shape[: x.dim() - len(size)]), (1,) * len(size)
    if tuple(x.shape[len(kept) :]) != tuple(size) or any(tuple(t.shape) != tuple(size) for t in given):
        return None
    return [_new(tuple(x.shape), x), _new((*kept, *ones), x), _new((*kept, *ones), x)]


FORMULAS: dict[Any, Callable[..., list[Result] | None]] = {
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.addmm.default: _addmm,
    aten.native_layer_norm.default: _layer_norm,
}


def _new(shape: tuple[int, ...], like: FakeTensor) -> Result:
    return Result(shape, dense(shape), 0, like.dtype, like.fake_device)


def _is_dense(x: Any) -> bool:
    """Whether a tensor is fake, not empty, and stands in memory row after row."""
    return type(x) is FakeTensor and x.numel() > 0 and x.stride() == dense(x.shape)


def _are_floats(*tensors: Any) -> bool:
    """Whether all are fake, in single precision and on one CPU."""
    return all(type(t) is FakeTensor and t.dtype == torch.float32 and t.fake_device.type == "cpu" for t in tensors)


NATIVE = torch.ops.aten.native_batch_norm.default
Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def quick_batch_norm(func: Any, args: Any) -> Results | None:
    """The results of this call; None if it is not a BatchNorm, or an unusual one that torch may refuse."""
    if func is not NATIVE or len(args) < 6 or not isinstance(args[0], FakeTensor) or args[0].dim() < 2:
        return None
    x, training = args[0], args[5]
    channels = (x.shape[1],)
    given = [t for t in args[1:5] if t is not None]
    if x.dtype != torch.float32 or any(t.dtype != x.dtype or tuple(t.shape) != channels for t in given):
        return None
    if not training and (args[3] is None or args[4] is None):
        return None
    kept = channels if training or x.device.type != "cpu" else (0,)  # a CPU keeps no statistics in evaluation
    return torch.empty_like(x), x.new_empty(kept), x.new_empty(kept)


class QuickNorms(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`quick_batch_norm` for all operators inside this mode."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        quick = quick_batch_norm(func, args)
        return func(*args, **(kwargs or {})) if quick is None else quick
