"""The number of micro-batches per step: the user's, or the method's default for a plan.

>>> micro_of(plan, get_method("multiplier"))        # K = 4, a batch of 64
4
"""

from __future__ import annotations

from lpcompile.core.method import BatchFacts, Method
from lpcompile.core.pipeline_order import checked_micro
from lpcompile.core.plan import Plan


def micro_of(plan: Plan, method: Method, stash: str = "all") -> int | None:
    """The method's default; None where a pipeline cannot cut the plan's batch."""
    saved = sum(u.saved_bytes for u in plan.units)
    return method.default_micro(BatchFacts(plan.K, plan.batch, plan.batch_free, saved, stash))


def micro_for(plan: Plan, method: Method, given: int | None = None, stash: str = "all") -> int:
    """`given` where it can run, else the default; UsageError where a pipeline cannot run it."""
    if method.pipeline:
        return checked_micro(method, plan.K, plan.batch, given, plan.batch_free)
    return given or micro_of(plan, method, stash) or 1


def bubble_of(method: Method, K: int, batch: int | None, free: bool = True) -> float:
    """Share of the other ranks' work that the slowest rank waits for in a step, with the default micro-batches."""
    return method.bubble(K, method.default_micro(BatchFacts(K, batch, free)) or 2 * K)
