"""Tensors without their values, and what a stage or an AuxNet takes and gives.

Stages are modules under the attribute names of the user's model, so the compiler's own attributes on them are named
`_lp_...`. Nothing outside the compiler reads those: it calls `io_of`, `own_io`, `refresh` and `use_mode`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class TensorSpec:
    """Shape, dtype and whether gradients flow; `batch` gives, per dimension, c where the size is c x batch (else 0).

    `edges` does so for the number of edges of a graph, whose nodes are the batch; -1 is a size that follows neither.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool = False
    batch: tuple[int, ...] = ()
    edges: tuple[int, ...] = ()

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

    def with_batch(self, batch: tuple[int, ...], edges: tuple[int, ...] = ()) -> TensorSpec:
        return replace(self, batch=batch, edges=edges)

    def multiples(self, of: str) -> tuple[int, ...]:
        """`batch` or `edges`."""
        return self.edges if of == "edges" else self.batch

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."),
            "requires_grad": self.requires_grad,
            "batch": list(self.batch),
            **({"edges": list(self.edges)} if self.edges else {}),
        }

    @staticmethod
    def from_json(data: dict[str, Any]) -> TensorSpec:
        dtype = getattr(torch, data["dtype"])
        return TensorSpec(tuple(data["shape"]), dtype, bool(data["requires_grad"]), tuple(data["batch"]),
                          tuple(data.get("edges", ())))  # fmt: skip

    def __str__(self) -> str:
        none = (0,) * len(self.shape)
        sizes = [
            _named(c, "B") if c else _named(e, "E") if e else str(s)
            for s, c, e in zip(self.shape, self.batch or none, self.edges or none, strict=True)
        ]
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(sizes)}]"


def _named(multiple: int, name: str) -> str:
    return "?" if multiple < 0 else name if multiple == 1 else f"{multiple}{name}"


@dataclass(frozen=True)
class StageIO:
    """What a stage takes and gives in one mode, in the order of its forward's arguments and results."""

    lams: tuple[TensorSpec, ...]  # from the boundary before it
    inputs: tuple[int, ...]  # the model inputs it takes itself, by position
    boundary: tuple[TensorSpec, ...]  # to the boundary after it
    outputs: tuple[int, ...]  # the model outputs it gives, by position


def batch_of(specs: tuple[TensorSpec, ...], shapes: list[tuple[int, ...]]) -> int | None:
    """The batch size that tensors of these shapes have; None if no dimension follows it."""
    for spec, shape in zip(specs, shapes, strict=True):
        for size, multiple in zip(shape, spec.batch, strict=False):
            if multiple:
                return size // multiple
    return None


def io_of(stage: nn.Module, training: bool = True) -> StageIO:
    """The record of a compiled stage."""
    modes: Any = stage._lp_io
    found: StageIO = modes[training]
    return found


def own_io(module: nn.Module, training: bool = True) -> StageIO | None:
    """The record of a compiled stage, AuxNet or head; None for a module that a user wrote."""
    return io_of(module, training) if hasattr(module, "_lp_io") else None


def refresh(stage: nn.Module) -> None:
    """Take over parameters, buffers and modules that the user's model has replaced since the last call."""
    follow: Any = stage._lp_refresh
    follow()


def use_mode(module: nn.Module, training: bool) -> None:
    """Run a compiled module's code for this mode, without touching the flags of its layers; other modules have one."""
    switch: Any = getattr(module, "_lp_use_mode", None)
    if switch is not None:
        switch(training)
