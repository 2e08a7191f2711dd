"""Plays a schedule against costs and a network: the timeline of each rank and the time of a steady step.

>>> found = simulate(program.plan, device_spec("v100"))
>>> found.step, found.rho, found.idle          # ms, speedup over one such device, share of the step per rank
>>> print(found)

The schedule is the one that the runtime executes. Ranks are played in the order of their clocks, from the first step
of training (without the micro-batches that do not exist yet) until the time of a step stays the same. Sends are
asynchronous: a transfer begins when it is sent, its receive is posted and the link is free.
"""

from __future__ import annotations

from dataclasses import dataclass

from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.core.system.gc_pause import gc_paused
from lpcompile.errors import PlanError
from lpcompile.simulate.device_spec import NOMINAL, THIS_MACHINE, DeviceSpec
from lpcompile.simulate.interconnect import Interconnect
from lpcompile.simulate.op_costs import InstructionCosts, costs_of
from lpcompile.simulate.player import PlayedEvent, Player

WINDOW = 2  # steps to average; the state is steady when two windows agree
MAX_STEADY_STEPS = 40  # after the warm-up, if no two windows agree
EPSILON = 1e-4  # relative difference of windows that agree


@dataclass(frozen=True)
class Simulation:
    """A step of the steady state."""

    method: str
    K: int
    replicas: int
    micro: int
    device: str
    step: float  # ms
    serial: float  # ms of the same samples on one device
    idle: tuple[float, ...]  # share of a step, by rank
    busy: tuple[float, ...]  # ms per step, by rank
    sent: tuple[float, ...]  # bytes per step to other stages, by rank
    averaged: float  # ms of the longest all-reduce over the replicas
    played: int  # steps, warm-up included
    unknown: tuple[str, ...]  # instructions without a known cost: taken as 0
    events: tuple[PlayedEvent, ...]  # of the last few steps

    @property
    def rho(self) -> float:
        """The speedup over one device."""
        return self.serial / self.step if self.step else 1.0

    def __str__(self) -> str:
        from lpcompile.simulate.step_text import simulation_text

        return simulation_text(self)


def default_device(plan: Plan) -> DeviceSpec:
    """This machine for measured costs, a nominal device for counted ones."""
    return THIS_MACHINE if plan.cost == "measured" else NOMINAL


def simulate(
    plan: Plan,
    device: DeviceSpec | None = None,
    *,
    schedule: Schedule | None = None,
    replicas: int = 1,
    share: float = 1.0,
) -> Simulation:
    """Play a schedule on a device; by default the one that a trainer with default settings runs.

    share: one replica's share of the plan's batch.
    """
    from lpcompile.runtime.engine.schedules import default_schedule

    schedule = schedule or default_schedule(plan, replicas)
    if schedule is None:
        raise PlanError(
            f"method {plan.method!r} has no schedule for K = {plan.world} and a batch of {plan.batch}: use another "
            f"method, or a batch that is a multiple of {plan.world}"
        )
    device = device or default_device(plan)
    costs = costs_of(plan, device, schedule.micro, share)
    return play(schedule, costs, Interconnect(device, plan.world, replicas))


@gc_paused()
def play(schedule: Schedule, costs: InstructionCosts, network: Interconnect) -> Simulation:
    """The steady state of a schedule."""
    player = Player(schedule, costs, network)
    window = run_until_steady(player, schedule)
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
        min(player.step),
        tuple(sorted(player.unknown)),
        player.events,
    )


def run_until_steady(player: Player, schedule: Schedule) -> int:
    """Play until the time of a step stays the same; returns how many of the last steps to average over."""
    warm_up = -(-schedule.lag // schedule.micro) + 1
    target = warm_up + 2 * WINDOW
    while True:
        player.run(target)
        lengths = [player.length(r, WINDOW) for r in range(schedule.K)]
        before = [player.length(r, WINDOW, WINDOW) for r in range(schedule.K)]
        if all(abs(a - b) <= EPSILON * max(a, b) for a, b in zip(lengths, before, strict=True)):
            return WINDOW
        if target >= warm_up + MAX_STEADY_STEPS:
            return target - warm_up  # some schedules repeat only after several steps
        target += WINDOW
