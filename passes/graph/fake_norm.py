"""BatchNorm on fake tensors: the shapes of its results without running its decomposition.

torch runs about twenty operators for every new shape, which takes half of a recording.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

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
