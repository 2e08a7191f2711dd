"""How many samples to measure steps with: all of them, or fewer if a step of all would take seconds.

Steps of few samples are run first and extrapolated, so that no long step is run only to find out that it is too long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.batch import batch_size, resized

SLOW_STEP = 1000.0  # ms: too slow to measure several steps in the time that there is
TELLING_STEP = SLOW_STEP / 3  # ms: long enough to extrapolate from, because call overhead is small against it
SAMPLE_GROWTH = 4  # factor on the number of samples when a step was too short to extrapolate from


class Affordable(NamedTuple):
    """The inputs to measure with."""

    tensors: list[torch.Tensor]
    step: float  # estimated ms of a step with them
    fewer: bool = False  # they are only part of the samples
    warm: bool = True  # a step with this number of samples has been run


def affordable(
    captured: Captured, tensors: list[torch.Tensor], step: Callable[[list[torch.Tensor]], float]
) -> Affordable:
    """All samples, or as many as take TELLING_STEP. `step` runs a step on its inputs and returns its ms.

    A model with a fixed batch size is measured with all samples.
    """
    batch = batch_size(tensors)
    if batch is None or not captured._lp.batch_free:
        return Affordable(tensors, step(tensors))
    size = least = min(batch, min_samples(captured))
    first = step(resized(tensors, size))  # includes one-time work
    clear = first >= 2 * TELLING_STEP and first * batch / size >= 2 * SLOW_STEP  # however much of it
    while True:
        taken = first if clear else step(resized(tensors, size))
        whole = taken * batch / size
        if whole <= SLOW_STEP or size == batch:
            return Affordable(tensors, whole, warm=size == batch)
        if taken >= TELLING_STEP:
            break
        size = min(batch, SAMPLE_GROWTH * size)
    few = min(batch, max(least, int(batch * TELLING_STEP / whole)))
    return Affordable(resized(tensors, few) if few < batch else tensors, whole * few / batch, few < batch, few == size)


def min_samples(captured: Captured) -> int:
    """Smallest batch size that can be trained on: one, or two with BatchNorm."""
    norms = any(isinstance(m, _BatchNorm) for m in captured._lp.model.modules())
    called = any("batch_norm" in str(n.target) for n in captured._lp_graphs[True].nodes)
    return 2 if norms or called else 1
