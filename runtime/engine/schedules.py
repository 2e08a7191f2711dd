"""The schedule of a plan: built and verified here for the trainer, the simulator and `emit` alike."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lpcompile.core.method import Method, ScheduleOptions, check_ranks
from lpcompile.core.micro_batches import micro_for, micro_of
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.core.system.gc_pause import gc_paused
from lpcompile.core.verify import verify
from lpcompile.runtime.engine.settings import Settings, settings
from lpcompile.runtime.methods import METHODS, get_method
from lpcompile.runtime.methods.recipe import Phase


def schedule_of(
    plan: Plan,
    method: Method,
    settings: Settings,
    micro: int,
    *,
    hosts: Sequence[int] = (),
    recursive: bool | None = None,
    replicas: int = 1,
) -> Schedule:
    """The verified schedule of a method. hosts: the AuxNets' host ranks where they differ from the plan's. recursive:
    AuxNets start from the model's input; by default as the plan's AuxNets do."""
    check_ranks(plan, method)
    s, tied = settings, bool(plan.tied)
    clipped = clip_norm(plan, method, s) > 0
    scope = s.clip_scope or ("global" if method.exact else "rank")
    options = ScheduleOptions(
        micro=micro,
        lockstep=s.lockstep,
        stash=s.stash,
        slack=s.slack,
        recursive=plan.aux.startswith("recursive") if recursive is None else recursive,
        kappa=s.kappa,
        hosts=tuple(hosts),
        tied=tied,
        norm=(clipped and (scope == "global" or tied)) or s.autocast == torch.float16,
        replicas=replicas,
    )
    schedule = method.schedule(plan, options)
    verify(schedule)
    return schedule


def clip_norm(plan: Plan, method: Method, settings: Settings) -> float:
    """The largest gradient norm; 0 where nothing is clipped."""
    return settings.clip_norm(method.exact or method.delayed or plan.K == 1)


def phase_schedule(plan: Plan, phase: Phase, replicas: int = 1) -> Schedule:
    """The schedule of a phase of a recipe, with the phase's own options."""
    method, own = get_method(phase.method), settings(dict(phase.options))
    return schedule_of(plan, method, own, micro_for(plan, method, own.micro, own.stash), replicas=replicas)


@gc_paused()
def default_schedule(plan: Plan, replicas: int = 1) -> Schedule | None:
    """The schedule of a trainer with default settings. None where the runtime does not have the plan's method, or where
    the batch cannot be cut into the micro-batches of its pipeline."""
    method = METHODS.get(plan.method)
    micro = micro_of(plan, method) if method else None
    if method is None or micro is None:
        return None
    return schedule_of(plan, method, Settings(), micro, replicas=replicas)
