"""Results of operators on fake tensors, made again where an equal call was seen.

Blocks repeat, so most operators of a recording run on shapes that have been seen. torch keeps the results of such calls
itself, but to find one takes longer than to make it: this table takes a third of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from lpcompile.passes.graph.fake_shapes import Result, fake_results

_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
_IRREGULAR = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
_AS_STRIDED = torch.ops.aten.as_strided


class KnownResults:
    """`call` gives what the operator would, with the results of equal calls of one FakeTensorMode.

    >>> known = KnownResults(mode)
    >>> known.call(torch.ops.aten.add.Tensor, (x, y), {})
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._regular: dict[Any, bool] = {}
        self._known: dict[tuple[Any, ...], tuple[list[Result], type] | None] = {}  # None: torch makes it every time

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        key = [func, torch.get_default_dtype()]
        tensors: list[FakeTensor] = []
        if not (self._is_regular(func) and self._add(key, tensors, (*args, *kwargs.items()))):
            return func(*args, **kwargs)
        call = tuple(key)
        if call not in self._known:
            results = fake_results(func, args, kwargs)
            if results is None:
                out = func(*args, **kwargs)
                self._known[call] = self._learned(out, tensors) if tensors else None
                return out
            self._known[call] = results, FakeTensor if len(results) == 1 else tuple
        known = self._known[call]
        return func(*args, **kwargs) if known is None else self._made(known[0], known[1], tensors)

    def _is_regular(self, func: Any) -> bool:
        """Whether results depend on nothing but what the key holds, and alias at most an argument."""
        if func not in self._regular:
            mutable = func._schema.is_mutable or func._overloadpacket is _AS_STRIDED
            self._regular[func] = func.namespace == "aten" and not mutable and not _IRREGULAR.intersection(func.tags)
        return self._regular[func] and not torch.is_inference_mode_enabled()

    def _add(self, key: list[Any], tensors: list[FakeTensor], values: Any) -> bool:
        """Add these arguments to the key; whether they can be told apart by it."""
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.fake_mode is not self.mode or not _is_simple(value):
                    return False
                key += (value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device,
                        value.requires_grad)  # fmt: skip
                tensors.append(value)
            elif kind in _PLAIN:
                key += (kind, value)  # 1 == 1.0 == True
            elif kind in (list, tuple):
                key += (kind, len(value))
                if not self._add(key, tensors, value):
                    return False
            else:
                return False
        return True

    def _learned(self, out: Any, tensors: list[FakeTensor]) -> tuple[list[Result], type] | None:
        """How to make results like `out` from tensors like these; None if that cannot be."""
        kind = type(out)
        parts = list(out) if kind in (list, tuple) else [out]
        if not parts or any(type(part) is not FakeTensor or not _is_simple(part) for part in parts):
            return None
        if any(part is tensor for part in parts for tensor in tensors):
            return None
        sources = {_memory(tensor): i for i, tensor in enumerate(tensors)}
        results = [
            Result(tuple(p.shape), p.stride(), p.storage_offset(), p.dtype, p.fake_device, sources.get(_memory(p)))
            for p in parts
        ]
        new = [_memory(p) for p, result in zip(parts, results, strict=True) if result.source is None]
        if len(set(new)) < len(new) or (len(new) < len(parts) and len(tensors) > 1):
            return None  # results share memory, or it is not certain with which argument
        again = self._made(results, list, tensors)
        alike = all(_facts(a) == _facts(b) for a, b in zip(again, parts, strict=True))
        return (results, kind) if alike else None

    def _made(self, results: list[Result], kind: type, tensors: list[FakeTensor]) -> Any:
        made = []
        with in_kernel_invocation_manager(self.mode):
            for result in results:
                fresh = result.source is None
                shape, stride = (result.shape, result.stride) if fresh else ((), ())
                tensor = torch.empty_strided(shape, stride, dtype=result.dtype, device="meta")
                if result.source is not None:
                    memory = tensors[result.source].untyped_storage()
                    tensor.set_(memory, result.offset, result.shape, result.stride)
                made.append(tensor)
        fakes = [FakeTensor(self.mode, t, r.device) for t, r in zip(made, results, strict=True)]
        return fakes[0] if kind is FakeTensor else kind(fakes)


def known_results(mode: FakeTensorMode | None) -> KnownResults | None:
    """The table of a mode, which is kept on it: recordings of one model share it. Real tensors have none."""
    if mode is None:
        return None
    found: KnownResults = mode.__dict__.setdefault("_lp_known_results", KnownResults(mode))
    return found


def _is_simple(tensor: FakeTensor) -> bool:
    """Whether shape, strides and dtype say all about a fake tensor."""
    odd = tensor.constant is not None or tensor.is_conj() or tensor.is_neg() or tensor.is_inference()
    return not odd and tensor.layout is torch.strided and not tensor.is_quantized


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _facts(tensor: FakeTensor) -> tuple[Any, ...]:
    return (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device, tensor.requires_grad,
            tensor.untyped_storage().nbytes(), torch._C._dispatch_key_set(tensor))  # fmt: skip
