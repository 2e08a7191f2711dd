"""How many micro-batches a step has where nobody says how many: of the plan's making, since costs are measured on them.

>>> default_micro("multiplier", K=4, batch=64)
4
"""

from __future__ import annotations

from lpcompile import pipelining
from lpcompile.pipelining import PIPELINES

LEAST = 8  # samples of a micro-batch that `multiplier` needs to be skewed by
HALVES, ENOUGH = 2, 16  # micro-batches by which the other decoupled methods save memory, of at least so many samples


def default_micro(method: str, K: int, batch: int | None, free: bool = True, stash: str = "all") -> int | None:
    """None where a pipeline cannot cut this batch. free: the model runs at other batch sizes than its own."""
    if method in PIPELINES:
        return pipelining.default_micro(method, K, batch, free)
    if method == "pipedream" and stash == "2bw":
        return K
    if K == 1 or not free:
        return 1
    if method == "multiplier":  # with fewer of them all gradients are steps late
        return max(1, min(K, (batch or 1) // LEAST))
    if method in ("penalty", "lagrangian"):  # activations of one at a time
        return max(1, min(HALVES, (batch or 1) // ENOUGH))
    return 1
