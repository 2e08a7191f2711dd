"""Memory of a rank: parameters with their optimizer state, and the autograd graphs that its schedule keeps alive."""

from __future__ import annotations

from lpcompile.core.cost import STATE_COPIES
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import STEPWISE, Schedule, moment


def alive(schedule: Schedule, rank: int, kind: str = "graph", stage: int | None = None) -> int:
    """The largest number of micro-batches whose graphs are alive at once on a rank, in the steady state.

    kind: "graph" for the stage, "aux" for the AuxNets, "W" for stashed weights. stage: of a rank that has several. A
    graph lives from the instruction that writes it to the last one that reads it; both recur every step.
    """
    M, items = schedule.micro, schedule.ranks[rank]
    length = len(items)
    begin: dict[int, int] = {}
    end: dict[int, int] = {}
    for at, item in enumerate(items):
        if item.op in STEPWISE or stage not in (None, item.stage):
            continue
        step, _ = moment(item, at, M)
        when, slot = step * length + at, item.slot % M
        if any(ref.kind == kind for ref in item.writes):
            begin[slot] = when
        if any(ref.kind == kind for ref in item.reads):
            end[slot] = max(end.get(slot, when), when)
    lives = [(begin[c], end.get(c, begin[c])) for c in begin]
    return max((sum((now - a) // length + (b - now) // length + 1 for a, b in lives) for now, _ in lives), default=0)


def rank_memory(plan: Plan, schedule: Schedule, share: float = 1.0) -> list[float]:
    """Bytes by rank, for steps of this share of the plan's batch."""
    part = share / schedule.micro
    found = [0.0] * plan.world
    for stage in plan.stages:
        s, r = stage.index, plan.rank_of(stage.index)
        only = s if plan.ranks else None
        hosted = [b.aux for b in plan.boundaries if b.aux is not None and b.aux.rank == r]
        state = STATE_COPIES * (stage.parameter_bytes + sum(a.parameter_bytes for a in hosted))
        state += alive(schedule, r, "W") * stage.parameter_bytes
        aux = sum(
            b.aux.share * plan.stages[b.index - 1].saved_bytes
            for b in plan.boundaries
            if b.aux is not None and b.aux.rank == r
        )
        beside = [plan.units[plan.stages[k - 1].last].output_bytes for k in (s, s + 1) if 1 <= k < plan.K]
        buffers = schedule.depth[r] * sum(beside)
        graphs = alive(schedule, r, stage=only) * stage.saved_bytes + max(1, alive(schedule, r, "aux")) * aux
        found[r] += state + part * (graphs + buffers)
    return found
