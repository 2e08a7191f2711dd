"""The outlook of a plan: simulated step, critical path, moved boundaries, other K, other methods, advice.

>>> found = outlook(program.plan)
>>> print(outlook_text(found))          # lpcompile.simulate.outlook_text
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.core.staleness import mean_staleness
from lpcompile.errors import LpError
from lpcompile.planning.rank_memory import rank_memory
from lpcompile.planning.replan import moved, replan
from lpcompile.runtime.engine.schedules import default_schedule
from lpcompile.runtime.methods import METHODS
from lpcompile.simulate.critical_path import AUXNET, AVERAGE, MESSAGE, STAGE, CriticalPath, critical_path, total
from lpcompile.simulate.device_spec import DeviceSpec
from lpcompile.simulate.interconnect import Interconnect
from lpcompile.simulate.op_costs import costs_of
from lpcompile.simulate.step import Simulation, default_device, simulate
from lpcompile.simulate.whole_run import WholeRun, whole_run

ENOUGH_OF_BEST = 0.95  # share of the best speedup beyond which more stages are not worth their devices
STAGES_TO_TRY = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)  # candidates for it; each is planned and simulated
MIN_GAIN = 0.02  # share of the critical path that a remedy must be able to save
DOMINANT_UNIT = 0.5  # share of its stage from which a unit is named as the limit


@dataclass(frozen=True)
class Neighbour:
    """A boundary moved by one unit, and the step time it would give."""

    boundary: int
    by: int
    after: str
    step: float


@dataclass(frozen=True)
class OutlookRow:
    """The simulated step of another K or another method."""

    method: str
    K: int
    micro: int
    step: float
    rho: float
    idle: float  # mean over ranks
    memory: float  # bytes, largest rank
    sent: float  # bytes per step over all boundaries
    exact: bool
    late: float  # steps by which gradients are late, mean over a step's micro-batches, of the rank that is latest
    extra: int  # parameters of AuxNets or heads


@dataclass(frozen=True)
class Outlook:
    simulation: Simulation
    neighbours: tuple[Neighbour, ...]
    sweep: tuple[OutlookRow, ...]
    methods: tuple[OutlookRow, ...]
    advice: str
    path: CriticalPath
    remedy: str
    run: WholeRun | None = None  # of a recipe


def outlook(
    plan: Plan, device: DeviceSpec | None = None, stages: Sequence[int] = (), methods: Sequence[str] = ()
) -> Outlook | None:
    """stages: further K to list. methods: to list beside the plan's own. None if the plan has no schedule."""
    device, schedule = device or default_device(plan), default_schedule(plan)
    if schedule is None:
        return None
    simulation = simulate(plan, device, schedule=schedule)
    upto = {K for K in (*STAGES_TO_TRY, plan.world) if K <= len(plan.units)}
    looked = {K: outlook_row(plan, device, K) for K in sorted({*upto, *stages})}
    found = [one for one in looked.values() if one is not None]
    neighbours = _neighbours(plan, device, schedule)
    path = critical_path(schedule, costs_of(plan, device, schedule.micro), Interconnect(device, plan.world))
    return Outlook(
        simulation,
        tuple(neighbours),
        tuple(one for K in stages if (one := looked[K]) is not None),
        tuple(one for name in methods if (one := outlook_row(plan, device, plan.world, name)) is not None),
        advice(plan, simulation, found, device),
        path,
        remedy(path, simulation, neighbours),
        whole_run(plan, device),
    )


@lru_cache(maxsize=64)
def outlook_row(plan: Plan, device: DeviceSpec, K: int, method: str | None = None) -> OutlookRow | None:
    """None if there is no such split or number of micro-batches. Cached: a page asks for the same K again."""
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
    extra = sum(b.aux.parameters for b in other.boundaries if b.aux is not None)
    return OutlookRow(
        other.method,
        K,
        found.micro,
        found.step,
        found.rho,
        sum(found.idle) / K,
        memory,
        sum(found.sent),
        exact,
        max(mean_staleness(schedule)),
        extra,
    )


def _neighbours(plan: Plan, device: DeviceSpec, schedule: Schedule) -> list[Neighbour]:
    found = []
    for b in plan.boundaries:
        for by in (-1, 1):
            other = moved(plan, b.index, by)
            if other is not None:
                after = plan.units[other.stages[b.index - 1].last].name
                found.append(Neighbour(b.index, by, after, simulate(other, device, schedule=schedule).step))
    return found


def advice(plan: Plan, found: Simulation, rows: Sequence[OutlookRow], device: DeviceSpec) -> str:
    """One sentence: the speedup of K, the largest useful K, and the bottleneck."""
    parts = [f"K = {plan.world} gives {found.rho:.1f}x" if plan.K > 1 else "K = 1 is plain training"]
    best = max((one.rho for one in rows), default=1.0)
    enough = min((one.K for one in rows if one.rho >= ENOUGH_OF_BEST * best), default=plan.world)
    at = next((one.rho for one in rows if one.K == enough), best)
    if best < 1.05:
        parts.append(f"{plan.method!r} makes no K faster on {device.name}")
    elif enough == max(one.K for one in rows) and enough < len(plan.units):
        parts.append(f"the model can use {enough} ({at:.1f}x) and more")
    elif enough == plan.world:
        parts.append("it is the most that this model can use")
    else:
        parts.append(f"K = {enough} is the most that this model can use ({at:.1f}x)")
    if plan.K > 1:
        parts.append(_limit(plan, found))
    return "; ".join(parts) + "."


def remedy(path: CriticalPath, found: Simulation, neighbours: Sequence[Neighbour]) -> str:
    """What would shorten the critical path, the largest possible gain first: at most two changes."""
    messages, averaging = path.of(MESSAGE), path.of(AVERAGE)
    auxnets, stages = path.of(AUXNET), path.of(*STAGE)
    pairs = sorted({(min(part.rank, part.peer), max(part.rank, part.peer)) for part in messages})
    hosts = sorted({part.rank for part in auxnets})
    by_rank = [sum(part.ms for part in stages if part.rank == rank) for rank in range(found.K)]
    waited = min(sum(by_rank) - max(by_rank), path.ms - max(found.busy))  # for other ranks: overlap can save it
    best = min(neighbours, key=lambda one: one.step, default=None)
    gains = [
        (total(messages), f"a faster link between ranks {pairs[0][0]} and {pairs[0][1]}" if len(pairs) == 1
         else "faster links between ranks"),
        (total(averaging), "faster links between replicas"),
        (total(auxnets), f"a smaller AuxNet on rank {hosts[0]}" if len(hosts) == 1 else "smaller AuxNets"),
        (waited, "more micro-batches" if found.micro > 1 else "a method that overlaps the stages"),
    ]  # fmt: skip
    if best is not None:
        move = f"boundary {best.boundary} moved one unit {'earlier' if best.by < 0 else 'later'}"
        gains.append((path.ms - best.step, move))
    worth = sorted((gain for gain in gains if gain[0] > MIN_GAIN * path.ms), key=lambda gain: -gain[0])
    return " or ".join(text for _, text in worth[:2]) or "more stages, or faster devices"


def _limit(plan: Plan, found: Simulation) -> str:
    """The bottleneck: why the speedup is not K."""
    rank = max(range(plan.world), key=lambda r: found.busy[r])
    waiting = min(found.idle)
    if waiting > 0.1:
        return f"even the busiest rank waits {100 * waiting:.0f} % of a step for the others"
    stage = max((plan.stages[s] for s in plan.stages_of(rank)), key=lambda s: s.work)
    units = plan.units[stage.first : stage.last + 1]
    largest = max(units, key=lambda u: u.forward + u.backward)
    share = (largest.forward + largest.backward) / ((stage.forward + stage.backward) or 1.0)
    if share >= DOMINANT_UNIT:
        return f"{largest.name}, {100 * share:.0f} % of its stage, limits rank {rank}"
    hosted = sum(b.aux.forward + b.aux.backward for b in plan.boundaries if b.aux is not None and b.aux.rank == rank)
    if hosted:
        part = 100 * hosted / (hosted + stage.forward + stage.backward)
        return f"rank {rank} has most to do, {part:.0f} % of it AuxNets"
    return f"rank {rank} has most to do"
