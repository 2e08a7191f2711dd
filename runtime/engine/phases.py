"""Which method runs when.

    steps       0 ... warmup_steps      ...      total_steps - finish ... total_steps
    runs          warm-up, exact       target         bp, exact

The warm-up ends early where λ is near enough to X. All ranks change at the same step.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lpcompile.core.method import Method
from lpcompile.errors import InputError, UsageError
from lpcompile.runtime.engine.team import add_networks, add_schedulers
from lpcompile.runtime.methods import get_method

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine, Prepared

log = logging.getLogger("lpcompile")
DEFAULT_WARMUP_STEPS = 200  # at most, for AuxNets that do not start consistently
STEPS_BETWEEN_VOTES = 10  # in a warm-up: all ranks compare their violations


def begin(engine: Engine, target: Method) -> None:
    """Start the method with the networks that it needs, and with a warm-up where that is asked for."""
    add_networks(engine, target)
    add_schedulers(engine)
    warm = engine.plan.K > 1 and engine.warmup > engine.steps and not target.exact
    if warm and target.heads:
        raise UsageError(
            f"warmup={engine.warmup} prepares λ for decoupling, and {target.name!r} has none; leave it out"
        )
    helpers = {"store": "warmup-stored", "auxnet": "warmup", "": "bp"}
    engine.use(get_method(helpers[target.aux]) if warm else target)


def warmup_steps(engine: Engine) -> int:
    """Exact steps before decoupling: the setting, or a default for AuxNets that start far from X."""
    if engine.settings.warmup is not None:
        return engine.settings.warmup
    nets = [b.aux for b in engine.plan.boundaries if b.aux is not None]
    if engine.target.aux != "auxnet" or engine.given.auxnets is not None or all(a.violation == 0 for a in nets):
        return 0
    total = engine.settings.total_steps
    return min(DEFAULT_WARMUP_STEPS, total // 10) if total else DEFAULT_WARMUP_STEPS


def schedule_of(engine: Engine, index: Tensor | None) -> tuple[Prepared, Method]:
    """The schedule for these samples: where λ is stored, a sample's first step is exact and makes its λ."""
    if index is None and engine.plan.K > 1 and _keeps_samples(engine):
        raise InputError(
            f"{engine.target.name!r} keeps values for each sample: pass their indices, trainer.step(x, y, index=i)"
        )
    if index is None or engine.target.aux != "store":
        return engine.prepared, engine.method
    if len(engine.seen) <= int(index.max()):
        grown = torch.zeros(int(index.max()) + 1, dtype=torch.bool)
        grown[: len(engine.seen)] = engine.seen
        engine.seen = grown
    new = not bool(engine.seen[index].all())
    engine.seen[index] = True
    if new and engine._exact is not None:
        return engine._exact, get_method(engine.method.first_sight)
    return engine.prepared, engine.method


def _keeps_samples(engine: Engine) -> bool:
    return engine.target.keeps_samples(engine.settings.kappa)


def note_start(engine: Engine, metrics: dict[str, Any]) -> None:
    """Without a warm-up: record how far λ is from X when training begins, as far as this rank sees it."""
    seen = [value for name, value in metrics.items() if name.startswith("violation")]
    if engine.violation_at_start is None and seen and not engine.method.exact:
        engine.violation_at_start = max(seen)
        log.info("step %d: decoupled from the start, largest violation %.3g", engine.steps, engine.violation_at_start)


def end_warm_up(engine: Engine, metrics: dict[str, Any]) -> None:
    """Decouple when the warm-up is long enough or λ is near enough to X, on all ranks at once."""
    if engine.method is engine.target:
        return
    over = engine.steps >= engine.warmup
    votes = engine.target.aux and engine.settings.warmup_violation and engine.steps % STEPS_BETWEEN_VOTES == 0
    if over or votes:
        seen = [v for name, v in engine.gather(metrics).items() if name.startswith("violation")]
        worst = max(seen, default=0.0)
        if over or (seen and worst < engine.settings.warmup_violation):
            if engine.target.aux:
                engine.violation_at_start = worst
            log.info("step %d: decoupled after a warm-up, largest violation %.3g", engine.steps, worst)
            engine.use(engine.target)


def begin_finish(engine: Engine) -> None:
    """Switch to `bp` when only the last, exact steps are left."""
    total, last = engine.settings.total_steps, engine.settings.finish
    if last and total and engine.steps >= total - last and not engine.target.exact and engine.plan.K > 1:
        log.info("step %d: the last %d steps are exact", engine.steps, total - engine.steps)
        engine.switch("bp", micro=None)
