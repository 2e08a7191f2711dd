"""How a batch is cut into micro-batches: as usual, not at all, or into fewer where it is small."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lpcompile.core.method import Method
from lpcompile.core.micro_batches import micro_for
from lpcompile.errors import UsageError
from lpcompile.runtime.engine.batches.shares import SAMPLES, no_reduction
from lpcompile.runtime.engine.settings import Settings
from lpcompile.runtime.methods.zero_bubble import MIN_SAMPLES, NORM_SAMPLES

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine


def usual_micro(engine: Engine, method: Method, asked: Settings) -> int:
    """Micro-batches of a whole batch; one where a loss cannot be put together from theirs."""
    if engine.whole and asked.reduction is None:
        if asked.micro not in (None, 1):
            raise UsageError(no_reduction(engine.whole))
        try:
            return micro_for(engine.plan, method, 1, asked.stash)
        except UsageError:
            raise UsageError(no_reduction(engine.whole)) from None
    return micro_for(engine.plan, method, asked.micro, asked.stash)


def keep_whole(engine: Engine, why: str) -> None:
    """Do not cut batches from here on: the loss of a batch does not follow from those of its parts."""
    engine.whole, engine.reduction = why, SAMPLES
    engine.refuse(engine.asked, engine.replicas)
    if usual_micro(engine, engine.method, engine.settings) == engine.micro:
        return
    engine.warn(
        f"{why}: batches are not cut into micro-batches, and ranks wait for each other; reduction='samples' trains "
        f"the mean of the micro-batches' losses, as gradient accumulation does, at full speed"
    )
    engine.flush()
    engine.use(engine.method)


def fit_batch(engine: Engine, size: int | None) -> None:
    """Cut a batch that is too small for the usual micro-batches, as the last of an epoch may be, into fewer.

    Gradients of exact steps do not depend on their number: there BatchNorm takes its statistics over as many samples as
    usual. Other methods would leave what is in flight: they keep their number while BatchNorm can run at all.
    """
    method = engine.method
    if size is None or engine.plan.K == 1 or method.replay_buffers:
        return
    usual = usual_micro(engine, method, engine.settings)
    if method.prepares:
        micro = usual if size >= 2 * usual else 1
    else:
        norm = engine.plan.batch_norm
        full = min(NORM_SAMPLES, (engine.plan.batch or NORM_SAMPLES * usual) // usual) if norm else 1
        least = max(1, full if method.exact else min(full, MIN_SAMPLES))
        possible = [m for m in range(min(size, usual), 0, -1) if method.accepts_micro(engine.plan.world, m)]
        micro = next((m for m in possible if size // m >= least), possible[-1] if possible else usual)
    if micro != engine.micro:
        engine.flush(size)
        engine.use(method, micro)
