"""How many micro-batches a step has where nobody says how many: of the plan's making, since costs are measured on them.

>>> default_micro("multiplier", K=4, batch=64)
4
"""

from __future__ import annotations

from lpcompile.core import pipeline_order
from lpcompile.core.pipeline_order import PIPELINES
from lpcompile.core.plan import Plan

LEAST = 8  # samples of the micro-batches that `multiplier` is skewed by; twice as many where two ranks are late by one
HALVES, ENOUGH = 2, 16  # micro-batches by which the other decoupled methods save memory, of at least so many samples
LARGE = 2**26  # bytes of a batch's activations from which on that is worth it


def default_micro(
    method: str, K: int, batch: int | None, free: bool = True, saved: int = 0, stash: str = "all"
) -> int | None:
    """None where a pipeline cannot cut this batch.

    free: the model runs at other batch sizes than its own. saved: bytes of the activations of a batch.
    """
    if method in PIPELINES:
        return pipeline_order.default_micro(method, K, batch, free)
    if method == "pipedream" and stash == "2bw":
        return K
    if K == 1 or not free:
        return 1
    if method == "multiplier":  # with fewer of them all gradients are steps late
        return max(1, min(K, (batch or 1) // (LEAST if K > 2 else 2 * LEAST)))
    if method in ("penalty", "lagrangian") and saved >= LARGE:  # activations of one at a time
        return max(1, min(HALVES, (batch or 1) // ENOUGH))
    return 1


def micro_of(plan: Plan, method: str | None = None, stash: str = "all") -> int | None:
    """The same for a plan's model and batch."""
    saved = sum(u.saved_bytes for u in plan.units)
    return default_micro(method or plan.method, plan.K, plan.batch, plan.batch_free, saved, stash)
