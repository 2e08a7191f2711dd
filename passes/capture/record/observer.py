"""Observes the operators below a recorded call: FLOPs, writes, random draws and tensors saved for backward."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from lpcompile.passes.graph.fake_shapes import quick_batch_norm
from lpcompile.passes.graph.flop_formulas import FORMULAS
from lpcompile.passes.graph.known_results import KnownResults

_DEVICE = torch.ops.prim.device.default

# Their schemas do not say that running statistics are written.
_BATCH_NORMS = {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}


def storage_key(tensor: torch.Tensor) -> int | None:
    """Equal for tensors that share memory; None where there is no storage to share (sparse)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return None


@dataclass
class Observation:
    """Cost and side effects of one recorded call."""

    flops: int = 0
    backward_flops: int = 0
    saved_bytes: int = 0
    random: bool = False
    sized_by_data: bool = False  # the shape of a result depends on values
    writes: set[int] = field(default_factory=set)


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`begin()` before a call, `end()` after it gives its Observation. Calls do not nest."""

    def __init__(self, known: KnownResults | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.known = Observation(), known
        self.kept: set[int] = set()  # storages counted as saved already, and those of the model's own state
        self._saved: list[torch.Tensor] = []
        self._alive: list[Any] = []  # a freed storage's address would be reused
        self.saved_hooks = saved_tensors_hooks(self._pack, self._unpack)

    def begin(self) -> None:
        self.now = Observation()

    def end(self) -> Observation:
        done, self.now = self.now, Observation()
        return done

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE:  # torch asks at every call; what runs below would be slower than the call itself
            fake = isinstance(args[0], FakeTensor) and not args[0].fake_mode.in_kernel_invocation
            return args[0].fake_device if fake else func(*args, **kwargs)
        out = quick_batch_norm(func, args)
        if out is None:
            out = func(*args, **kwargs) if self.known is None else self.known.call(func, args, kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.now.random = True
        if torch.Tag.dynamic_output_shape in func.tags and _looks_at_values(func, args):
            self.now.sized_by_data = True
        self._count(func, args, kwargs, out)
        self._watch_writes(func, args, kwargs)
        return out

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        operands = [a for a in args if isinstance(a, torch.Tensor)]
        trained = sum(a.requires_grad for a in operands[:2])
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            forward = int(formula(*args, **kwargs, out_val=out))
            self.now.flops += forward
            self.now.backward_flops += forward * trained
        elif not func.is_view:
            first = out[0] if isinstance(out, (tuple, list)) and out else out
            if isinstance(first, torch.Tensor):
                self.now.flops += math.prod(first.shape)
                self.now.backward_flops += math.prod(first.shape) if trained else 0

    def _watch_writes(self, func: Any, args: Any, kwargs: Any) -> None:
        schema = func._schema
        if schema.name in _BATCH_NORMS:
            training = args[5] if len(args) > 5 else kwargs.get("training", False)
            self._write([a for a in args[3:5] if training and isinstance(a, torch.Tensor)])
        if not schema.is_mutable:
            return
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                self._write(value if isinstance(value, (list, tuple)) else [value])

    def _write(self, tensors: Any) -> None:
        for tensor in (t for t in tensors if isinstance(t, torch.Tensor)):
            key = storage_key(tensor)
            if key is not None:
                self.now.writes.add(key)
                self._alive.append(
                    tensor.untyped_storage()
                )  # else a later tensor could get its address and seem written

    def _pack(self, tensor: torch.Tensor) -> int:
        key = storage_key(tensor)
        if key is not None and key not in self.kept:
            self.kept.add(key)
            self._alive.append(tensor.untyped_storage())
            self.now.saved_bytes += tensor.untyped_storage().nbytes()
        self._saved.append(tensor)  # the graph keeps an index: a tensor would keep the graph, a cycle
        return len(self._saved) - 1

    def _unpack(self, index: int) -> torch.Tensor:
        return self._saved[index]  # a layer may differentiate inside its forward


def _looks_at_values(func: Any, args: Any) -> bool:
    """Of the operators tagged as dynamic, indexing depends on values only with a mask."""
    if func._overloadpacket is not torch.ops.aten.index:
        return True
    return any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
