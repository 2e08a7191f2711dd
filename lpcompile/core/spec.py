"""What a tensor looks like, without the tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True)
class TensorSpec:
    """Shape, dtype and whether gradients flow; `batch` gives, per dimension, c where the size is c x batch (else 0)."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool = False
    batch: tuple[int, ...] = ()

    @staticmethod
    def of(tensor: torch.Tensor) -> TensorSpec:
        return TensorSpec(tuple(int(s) for s in tensor.shape), tensor.dtype, tensor.requires_grad)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_float(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex

    def at(self, batch: int) -> tuple[int, ...]:
        """The shape at another batch size."""
        multiples = self.batch or (0,) * len(self.shape)
        return tuple(c * batch if c else s for s, c in zip(self.shape, multiples, strict=True))

    def with_batch(self, batch: tuple[int, ...]) -> TensorSpec:
        return replace(self, batch=batch)

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."),
            "requires_grad": self.requires_grad,
            "batch": list(self.batch),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> TensorSpec:
        dtype = getattr(torch, data["dtype"])
        return TensorSpec(tuple(data["shape"]), dtype, bool(data["requires_grad"]), tuple(data["batch"]))

    def __str__(self) -> str:
        sizes = [
            str(s) if not c else ("B" if c == 1 else f"{c}B")
            for s, c in zip(self.shape, self.batch or (0,) * len(self.shape), strict=True)
        ]
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(sizes)}]"
