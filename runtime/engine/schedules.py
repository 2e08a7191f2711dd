"""The schedule that a trainer with default settings runs: for what reads a plan without training."""

from __future__ import annotations

from lpcompile.core.gc_pause import uncollected
from lpcompile.core.micro_batches import micro_of
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.core.verify import verify
from lpcompile.runtime.engine.settings import Settings
from lpcompile.runtime.methods import METHODS, ScheduleOptions


@uncollected()
def default_schedule(plan: Plan, replicas: int = 1) -> Schedule | None:
    """Verified; None where the plan is for a method that the runtime does not have, or for a batch that is no whole
    number of micro-batches for its pipeline."""
    method = METHODS.get(plan.method)
    micro = micro_of(plan)
    if method is None or micro is None:
        return None
    tied = bool(plan.tied)
    clipped = Settings().clip_norm(method.exact or method.delayed or plan.K == 1) > 0
    options = ScheduleOptions(
        micro=micro,
        recursive=plan.aux.startswith("recursive"),
        tied=tied,
        norm=clipped and tied,
        replicas=replicas,
    )
    schedule = method.schedule(plan, options)
    verify(schedule)
    return schedule
