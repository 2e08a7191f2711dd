"""Plays a schedule against costs and a network: when each rank does what, and how long a step takes in the long run.

>>> found = simulate(program.plan, device_spec("v100"))
>>> found.step, found.rho, found.idle          # ms, speedup over one such device, share of the step a rank
>>> print(found)

It is the schedule that the runtime executes. Ranks are played in the order of their clocks, from the first step of
training on (micro-batches that do not exist are left out, as there) until the time of a step stays the same. A send
keeps nobody: its transfer begins when it is sent, its receive is posted and the link is free.
"""

from __future__ import annotations

from dataclasses import dataclass

from lpcompile.core.gc_pause import gc_paused
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.errors import PlanError
from lpcompile.simulate.device_spec import NOMINAL, THIS_MACHINE, DeviceSpec
from lpcompile.simulate.interconnect import Network
from lpcompile.simulate.op_costs import Costs, costs_of
from lpcompile.simulate.player import Event, Player

WINDOW = 2  # steps whose mean must repeat
MOST = 40  # steps after the start-up, where it never quite repeats
EPSILON = 1e-4


@dataclass(frozen=True)
class Simulation:
    """A step of the steady state, and what led there."""

    method: str
    K: int
    replicas: int
    micro: int
    device: str
    step: float  # ms
    serial: float  # ms of the same samples on one device
    idle: tuple[float, ...]  # share of a step, a rank
    busy: tuple[float, ...]  # ms of a step, a rank
    sent: tuple[float, ...]  # bytes of a step to other stages, a rank
    averaged: float  # ms of the longest all-reduce over the replicas
    played: int  # steps
    unknown: tuple[str, ...]  # instructions whose cost nobody knows: taken as 0
    events: tuple[Event, ...]  # of the last few steps

    @property
    def rho(self) -> float:
        """The speedup over one device."""
        return self.serial / self.step if self.step else 1.0

    def __str__(self) -> str:
        from lpcompile.simulate.text import simulation_text

        return simulation_text(self)


def default_device(plan: Plan) -> DeviceSpec:
    """Measured costs are this machine's, counted ones no machine's."""
    return THIS_MACHINE if plan.cost == "measured" else NOMINAL


def simulate(
    plan: Plan,
    device: DeviceSpec | None = None,
    *,
    schedule: Schedule | None = None,
    replicas: int = 1,
    share: float = 1.0,
) -> Simulation:
    """Play a plan's own schedule (as a trainer with default settings runs it), or another one, on a device.

    share: of the plan's batch that one replica has.
    """
    from lpcompile.runtime.engine.schedules import default_schedule

    schedule = schedule or default_schedule(plan, replicas)
    if schedule is None:
        raise PlanError(
            f"method {plan.method!r} has no schedule for K = {plan.K} and a batch of {plan.batch}: use another method, "
            f"or a batch that is a multiple of {plan.K}"
        )
    device = device or default_device(plan)
    costs = costs_of(plan, device, schedule.micro, share)
    return play(schedule, costs, Network(device, plan.K, replicas))


@gc_paused()
def play(schedule: Schedule, costs: Costs, network: Network) -> Simulation:
    """The steady state of a schedule."""
    player = Player(schedule, costs, network)
    fill = -(-schedule.lag // schedule.micro) + 1
    target = fill + 2 * WINDOW
    while True:
        player.run(target)
        lengths = [player.length(r, WINDOW) for r in range(schedule.K)]
        before = [player.length(r, WINDOW, WINDOW) for r in range(schedule.K)]
        steady = all(abs(a - b) <= EPSILON * max(a, b) for a, b in zip(lengths, before, strict=True))
        if steady or target >= fill + MOST:
            break
        target += WINDOW
    window = WINDOW if steady else target - fill  # some schedules repeat only after several steps
    step = max(player.length(r, window) for r in range(schedule.K))
    busy = tuple(player.busy_time(r, window) for r in range(schedule.K))
    return Simulation(
        schedule.method,
        schedule.K,
        network.replicas,
        schedule.micro,
        network.device.name,
        step,
        costs.serial,
        tuple(max(0.0, 1 - b / step) if step else 0.0 for b in busy),
        busy,
        tuple(sum(i.size for i in line if i.act in ("send", "offer")) for line in player.lines),
        max((i.cost for line in player.lines for i in line if i.act == "average"), default=0.0),
        target,
        tuple(sorted(player.unknown)),
        player.events,
    )
