"""The collapse check: names a boundary whose values no longer vary over samples, or are not finite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lpcompile.errors import TrainingError

if TYPE_CHECKING:
    from lpcompile.runtime.engine.worker import Worker

MIN_RELATIVE_VARIANCE = 1e-5  # below it samples cannot be told apart
INFINITE = "lower the learning rate, clip more (clip=0.5), or cut after a normalised layer (pins=...)"


class CollapseWarning(UserWarning):
    """A boundary has collapsed and training goes on (collapse="warn")."""


def check(
    varied: set[tuple[int, str, int]], rank: int, boundary: int, step: int, found: dict[str, Sequence[Tensor]]
) -> str:
    """Say which of λ and X of one boundary no longer varies; "" if both do. Values that are not finite end training.

    `varied` records the tensors that once varied: a tensor that never did is fine.
    """
    said = ""
    for name, tensors in found.items():
        for i, tensor in enumerate(tensors):
            spread = relative_variance(tensor)
            if not math.isfinite(spread):
                fail("stop", f"{place(step, rank, boundary)}: {name} is not finite", INFINITE)
            elif spread >= MIN_RELATIVE_VARIANCE:
                varied.add((boundary, name, i))
            elif (boundary, name, i) in varied:
                what = f"{name} is nearly the same for all samples (relative variance {spread:.1e})"
                said = said or f"{place(step, rank, boundary)}: {what}"
    return said


def relative_variance(tensor: Tensor) -> float:
    """Variance over samples, as a share of the mean square."""
    values = tensor.detach().float()
    if len(values) < 2:
        return math.inf if not bool(torch.isfinite(values).all()) else 1.0
    size = values.square().mean()
    return float(values.var(0, unbiased=False).mean() / size) if float(size) > 0 else 0.0


def not_finite(name: str, value: float, w: Worker, boundary: int | None, step: int) -> None:
    """Stop at a loss or violation that is not a number, and say where it comes from as far as this rank can see."""
    for batch in w.batches.values():
        for i, t in enumerate(batch.inputs):
            if t.is_floating_point() and (count := int((~torch.isfinite(t)).sum())):
                inside = f"{count} values of the batch are not finite"
                fail(
                    "stop",
                    f"{place(step, w.rank, boundary)}: the {name} is {value}: {inside}",
                    f"look at input {i} of the model",
                )
    for parameter, t in w.stage.module.named_parameters():
        if t.is_floating_point() and (count := int((~torch.isfinite(t)).sum())):
            inside = f"{count} of {t.numel()} values of {parameter} are not finite"
            fail("stop", f"{place(step, w.rank, boundary)}: the {name} is {value}: {inside}", INFINITE)
    fail("stop", f"{place(step, w.rank, boundary)}: the {name} is {value}", INFINITE)


def place(step: int, rank: int, boundary: int | None) -> str:
    return f"step {step}, rank {rank}{f', boundary {boundary}' if boundary is not None else ''}"


def fail(policy: str, what: str, remedy: str) -> None:
    if policy == "stop":
        raise TrainingError(f"{what}; {remedy}")
    warnings.warn(f"{what}; {remedy}", CollapseWarning, stacklevel=2)
