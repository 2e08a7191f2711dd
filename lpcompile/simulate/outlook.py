"""What to expect of a plan: the simulated step, its boundaries against their neighbours, other K, other methods.

>>> found = outlook(program.plan)
>>> print(outlook_text(found))          # lpcompile.simulate.outlook_text
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.errors import LpError
from lpcompile.planning.replan import moved, replan
from lpcompile.runtime.engine.schedules import default_schedule
from lpcompile.runtime.methods import METHODS
from lpcompile.simulate.device_spec import DeviceSpec
from lpcompile.simulate.rank_memory import rank_memory
from lpcompile.simulate.step import Simulation, default_device, simulate

ENOUGH = 0.95  # of the best speedup: more stages are not worth their devices
LOOKED = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # stages to look for it; every one more is planned and played
DOMINANT = 0.5  # of a rank's work: the unit that limits it


@dataclass(frozen=True)
class Neighbour:
    """A boundary moved by one unit: where it would be, and the step it would give."""

    boundary: int
    by: int
    after: str
    step: float


@dataclass(frozen=True)
class Row:
    """One K, or one method."""

    method: str
    K: int
    micro: int
    step: float
    rho: float
    idle: float  # mean over ranks
    memory: float  # bytes of the rank that needs most
    sent: float  # bytes of a step, over all boundaries
    exact: bool


@dataclass(frozen=True)
class Outlook:
    simulation: Simulation
    neighbours: tuple[Neighbour, ...]
    sweep: tuple[Row, ...]
    methods: tuple[Row, ...]
    advice: str


def outlook(
    plan: Plan, device: DeviceSpec | None = None, stages: Sequence[int] = (), methods: Sequence[str] = ()
) -> Outlook | None:
    """stages, methods: what to list besides; None where the plan has no schedule to play."""
    device, schedule = device or default_device(plan), default_schedule(plan)
    if schedule is None:
        return None
    simulation = simulate(plan, device, schedule=schedule)
    upto = {K for K in (*LOOKED, plan.K) if K <= len(plan.units)}
    looked = {K: row(plan, device, K) for K in sorted({*upto, *stages})}
    found = [one for one in looked.values() if one is not None]
    return Outlook(
        simulation,
        tuple(_neighbours(plan, device, schedule)),
        tuple(one for K in stages if (one := looked[K]) is not None),
        tuple(one for name in methods if (one := row(plan, device, plan.K, name)) is not None),
        advice(plan, simulation, found, device),
    )


@lru_cache(maxsize=64)
def row(plan: Plan, device: DeviceSpec, K: int, method: str | None = None) -> Row | None:
    """None where there is no such split, or no such number of micro-batches. Kept, for a page asks for the same K."""
    try:
        other = replan(plan, K, method)
        schedule = default_schedule(other)
    except LpError:
        return None
    if schedule is None:
        return None
    found = simulate(other, device, schedule=schedule)
    memory = max(rank_memory(other, schedule))
    exact = METHODS[other.method].exact or K == 1
    return Row(other.method, K, found.micro, found.step, found.rho, sum(found.idle) / K, memory, sum(found.sent), exact)


def _neighbours(plan: Plan, device: DeviceSpec, schedule: Schedule) -> list[Neighbour]:
    found = []
    for b in plan.boundaries:
        for by in (-1, 1):
            other = moved(plan, b.index, by)
            if other is not None:
                after = plan.units[other.stages[b.index - 1].last].name
                found.append(Neighbour(b.index, by, after, simulate(other, device, schedule=schedule).step))
    return found


def advice(plan: Plan, found: Simulation, rows: Sequence[Row], device: DeviceSpec) -> str:
    """What K gives, how far the model goes, what stands in the way: one sentence."""
    parts = [f"K = {plan.K} gives {found.rho:.1f}x" if plan.K > 1 else "K = 1 is plain training"]
    best = max((one.rho for one in rows), default=1.0)
    enough = min((one.K for one in rows if one.rho >= ENOUGH * best), default=plan.K)
    at = next((one.rho for one in rows if one.K == enough), best)
    if best < 1.05:
        parts.append(f"{plan.method!r} makes no K faster on {device.name}")
    elif enough == max(one.K for one in rows) and enough < len(plan.units):
        parts.append(f"the model can use {enough} ({at:.1f}x) and more")
    elif enough == plan.K:
        parts.append("it is the most that this model can use")
    else:
        parts.append(f"K = {enough} is the most that this model can use ({at:.1f}x)")
    if plan.K > 1:
        parts.append(_limit(plan, found))
    return "; ".join(parts) + "."


def _limit(plan: Plan, found: Simulation) -> str:
    """Why the speedup is not K."""
    rank = max(range(plan.K), key=lambda r: found.busy[r])
    waiting = min(found.idle)
    if waiting > 0.1:
        return f"even the busiest rank waits {100 * waiting:.0f} % of a step for the others"
    stage = plan.stages[rank]
    units = plan.units[stage.first : stage.last + 1]
    largest = max(units, key=lambda u: u.forward + u.backward)
    share = (largest.forward + largest.backward) / ((stage.forward + stage.backward) or 1.0)
    if share >= DOMINANT:
        return f"{largest.name}, {100 * share:.0f} % of its stage, limits rank {rank}"
    hosted = sum(b.aux.forward + b.aux.backward for b in plan.boundaries if b.aux is not None and b.aux.rank == rank)
    if hosted:
        part = 100 * hosted / (hosted + stage.forward + stage.backward)
        return f"rank {rank} has most to do, {part:.0f} % of it AuxNets"
    return f"rank {rank} has most to do"
