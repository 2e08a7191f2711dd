"""What a stage or an AuxNet takes and gives: the one record that the compiler and the runtime both read."""

from __future__ import annotations

from dataclasses import dataclass

from lpcompile.core.spec import TensorSpec as TensorSpec


@dataclass(frozen=True)
class StageIO:
    """What a stage takes and gives in one mode, in the order of its forward's arguments and results."""

    lams: tuple[TensorSpec, ...]  # from the boundary before it
    inputs: tuple[int, ...]  # the model inputs it takes itself, by position
    boundary: tuple[TensorSpec, ...]  # to the boundary after it
    outputs: tuple[int, ...]  # the model outputs it gives, by position


def sized(spec: TensorSpec, batch: int) -> tuple[int, ...]:
    """The shape at this batch size."""
    return tuple(c * batch if c else s for s, c in zip(spec.shape, spec.batch or (0,) * len(spec.shape), strict=True))


def batch_of(specs: tuple[TensorSpec, ...], shapes: list[tuple[int, ...]]) -> int | None:
    """The batch size that tensors of these shapes have; None where no dimension follows it."""
    for spec, shape in zip(specs, shapes, strict=True):
        for size, multiple in zip(shape, spec.batch, strict=False):
            if multiple:
                return size // multiple
    return None
