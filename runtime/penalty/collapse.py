"""The collapse check: names a boundary whose values no longer vary over samples, or are not finite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from lpcompile.errors import TrainingError

MIN_RELATIVE_VARIANCE = 1e-5  # below it samples cannot be told apart
REMEDY = {
    "collapse": "let β start smaller (beta={0: 0.1, ...}), weaken the pull on λ (lam_weight=0.5), start consistent or "
    "warm up (warmup=...), or use method='multiplier'",
    "infinite": "lower the learning rate, clip more (clip=0.5), or cut after a normalised layer (pins=...)",
}


class CollapseWarning(UserWarning):
    """A boundary has collapsed and training goes on (collapse="warn")."""


def check(
    policy: str,
    varied: set[tuple[int, str, int]],
    rank: int,
    boundary: int,
    step: int,
    found: dict[str, Sequence[Tensor]],
) -> None:
    """Check λ and X of one boundary. `varied` records the tensors that once varied: a tensor that never did is fine."""
    for name, tensors in found.items():
        for i, tensor in enumerate(tensors):
            spread = relative_variance(tensor)
            if not math.isfinite(spread):
                fail("stop", f"{name} is not finite", "infinite", rank, boundary, step)
            elif spread >= MIN_RELATIVE_VARIANCE:
                varied.add((boundary, name, i))
            elif (boundary, name, i) in varied:
                what = f"{name} is nearly the same for all samples (relative variance {spread:.1e})"
                fail(policy, what, "collapse", rank, boundary, step)


def relative_variance(tensor: Tensor) -> float:
    """Variance over samples, as a share of the mean square."""
    values = tensor.detach().float()
    if len(values) < 2:
        return math.inf if not bool(torch.isfinite(values).all()) else 1.0
    size = values.square().mean()
    return float(values.var(0, unbiased=False).mean() / size) if float(size) > 0 else 0.0


def finite(name: str, value: float, rank: int, boundary: int | None, step: int) -> None:
    """Stop at a loss or violation that is not a number."""
    if not math.isfinite(value):
        fail("stop", f"the {name} is {value}", "infinite", rank, boundary, step)


def fail(policy: str, what: str, remedy: str, rank: int, boundary: int | None, step: int) -> None:
    place = f", boundary {boundary}" if boundary is not None else ""
    message = f"step {step}, rank {rank}{place}: {what}; {REMEDY[remedy]}"
    if policy == "stop":
        raise TrainingError(message)
    warnings.warn(message, CollapseWarning, stacklevel=2)
