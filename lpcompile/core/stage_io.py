"""What a stage or an AuxNet takes and gives: the one record that the compiler and the runtime both read.

Stages are modules under the attribute names of the user's model, so the compiler's own attributes on them are named
`_lp_...`. Nothing outside the compiler reads those: it calls `io_of`, `own_io`, `refresh` and `use_mode`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from lpcompile.core.spec import TensorSpec as TensorSpec


@dataclass(frozen=True)
class StageIO:
    """What a stage takes and gives in one mode, in the order of its forward's arguments and results."""

    lams: tuple[TensorSpec, ...]  # from the boundary before it
    inputs: tuple[int, ...]  # the model inputs it takes itself, by position
    boundary: tuple[TensorSpec, ...]  # to the boundary after it
    outputs: tuple[int, ...]  # the model outputs it gives, by position


def batch_of(specs: tuple[TensorSpec, ...], shapes: list[tuple[int, ...]]) -> int | None:
    """The batch size that tensors of these shapes have; None where no dimension follows it."""
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
