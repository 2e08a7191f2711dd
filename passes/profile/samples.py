"""With how many samples a step is measured: all of them where that takes no seconds, else as many as a second allows.

Nobody waits for a whole step to learn that it is too long: steps of few samples come first, and tell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.batch import batch_size, resized

SLOW = 2500.0  # ms of a step: too slow to measure many of them
TELLING = SLOW / 8  # ms of a step that is more than the overhead of its calls: others can be told from it
GROWTH = 4  # of the samples, where a step was too short to tell


class Affordable(NamedTuple):
    """The inputs to measure with, about how many ms a step takes with them, whether they are fewer samples than there
    are, and whether a step with just as many has been run."""

    tensors: list[torch.Tensor]
    step: float
    fewer: bool = False
    warm: bool = True


def affordable(
    captured: Captured, tensors: list[torch.Tensor], step: Callable[[list[torch.Tensor]], float]
) -> Affordable:
    """All samples, or as many as take a third of SLOW. `step` runs one with these inputs and gives its ms.

    Where the model runs at one batch size only, all of them.
    """
    batch = batch_size(tensors)
    if batch is None or not captured._lp.batch_free:
        return Affordable(tensors, step(tensors))
    size = least = min(batch, fewest(captured))
    first = step(resized(tensors, size))  # what happens in a first step only is not for counting
    clear = first >= 2 * TELLING and first * batch / size >= 2 * SLOW  # but here it makes no difference
    while True:
        taken = first if clear else step(resized(tensors, size))
        whole = taken * batch / size
        if whole <= SLOW or size == batch:
            return Affordable(tensors, whole, warm=size == batch)
        if taken >= TELLING:
            break
        size = min(batch, GROWTH * size)
    few = min(batch, max(least, int(batch * SLOW / 3 / whole)))
    return Affordable(resized(tensors, few) if few < batch else tensors, whole * few / batch, few < batch, few == size)


def fewest(captured: Captured) -> int:
    """One, but two for BatchNorm, which cannot train on one."""
    norms = any(isinstance(m, _BatchNorm) for m in captured._lp.model.modules())
    called = any("batch_norm" in str(n.target) for n in captured._lp_graphs[True].nodes)
    return 2 if norms or called else 1
