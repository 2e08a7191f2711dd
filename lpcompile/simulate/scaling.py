"""Scaling: the step time of K stages x R replicas on many devices, against data parallelism and pipelines.

>>> rows = splits(plan, device_spec("h100"), devices=64, batch=4096, methods=("multiplier", "1f1b"))
>>> fastest(rows, "multiplier").K
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from lpcompile.core.cost import STATE_COPIES
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.errors import PlanError, UsageError
from lpcompile.planning.rank_memory import rank_memory
from lpcompile.planning.replan import replan, with_method
from lpcompile.runtime.methods.recipe import Phase, main_phase, recipe_of, shares
from lpcompile.simulate.device_spec import DeviceSpec
from lpcompile.simulate.interconnect import Interconnect
from lpcompile.simulate.op_costs import STEP_PASSES, costs_of, loss_of, unit_times
from lpcompile.simulate.step import Simulation, play

DATA_PARALLEL = "data parallel"
SHARDED = "sharded data parallel"


@dataclass(frozen=True)
class Split:
    """One way to use the devices."""

    method: str
    K: int
    replicas: int
    micro: int
    batch: int  # over all replicas
    step: float  # ms
    rho: float  # speedup over one device with the same batch
    idle: float  # share of a step, largest of all ranks
    memory: float  # bytes, largest of all ranks
    sent: float  # bytes per step over all boundaries of one replica

    @property
    def devices(self) -> int:
        return self.K * self.replicas

    @property
    def samples_per_s(self) -> float:
        return 1e3 * self.batch / self.step if self.step else 0.0

    @property
    def efficiency(self) -> float:
        return self.rho / self.devices


def splits(
    plan: Plan, device: DeviceSpec, devices: int, batch: int, methods: Sequence[str], stages: Sequence[int] = ()
) -> list[Split]:
    """Data parallelism alone, then for each method every K (of `stages`) that divides the devices."""
    found = [data_parallel(plan, device, devices, batch)]
    most = len(plan.units)
    for method in methods:
        for K in stages or [k for k in range(2, min(devices, most) + 1) if devices % k == 0]:
            if K > 1 and devices % K == 0 and K <= most:
                found.append(split(plan, device, method, K, devices // K, batch))
    return [one for one in found if one is not None]


def split(plan: Plan, device: DeviceSpec, method: str, K: int, replicas: int, batch: int) -> Split | None:
    """None if the batch cannot be divided this way."""
    serial, recipe = serial_step(plan, device, batch), recipe_of(method)
    step, idle, memory, sent, micro = 0.0, 0.0, 0.0, 0.0, 1
    for phase, part in zip(recipe, shares(recipe), strict=True):
        found = simulated(plan, device, method, K, replicas, batch, phase)
        if found is None:
            return None
        simulation, bytes_by_rank = found
        step, idle = step + part * simulation.step, idle + part * simulation.step * max(simulation.idle)
        memory, sent = max(memory, *bytes_by_rank), sent + part * sum(simulation.sent)
        micro = simulation.micro if phase == main_phase(recipe) else micro
    return Split(method, K, replicas, micro, batch, step, serial / step, idle / step, memory, sent)


def simulated(
    plan: Plan, device: DeviceSpec, method: str, K: int, replicas: int, batch: int, phase: Phase | None = None
) -> tuple[Simulation, list[float]] | None:
    """The simulation of one replica, and its memory in bytes by rank. phase: of a recipe, by default the main one."""
    if batch % replicas:
        return None
    mine, share, main = batch // replicas, batch / replicas / (plan.batch or 1), main_phase(recipe_of(method))
    phase = phase or main
    try:
        again = with_method(_replan(plan, K, main.method), phase.method)
        schedule = _schedule(replace(again, batch=mine), str(replace(phase, until=())), replicas > 1)
    except (PlanError, UsageError):  # no such number of micro-batches, or of stages
        return None
    costs = costs_of(again, device, schedule.micro, share)
    return play(schedule, costs, Interconnect(device, K, replicas)), rank_memory(again, schedule, share)


@lru_cache(maxsize=256)
def _replan(plan: Plan, K: int, method: str) -> Plan:
    return replan(plan, K, method)


@lru_cache(maxsize=64)
def _schedule(plan: Plan, phase: str, several: bool) -> Schedule:
    from lpcompile.runtime.engine.schedules import phase_schedule

    return phase_schedule(plan, recipe_of(phase)[0], 2 if several else 1)


def serial_step(plan: Plan, device: DeviceSpec, batch: int) -> float:
    """ms of a step of this batch on one device."""
    share = batch / (plan.batch or 1)
    return (
        sum(unit_times(plan.units, plan.cost, device, share, plan.part))
        + loss_of(plan, device) * share
        + _update(plan, device)
    )


def data_parallel(plan: Plan, device: DeviceSpec, devices: int, batch: int) -> Split | None:
    """The model on every device, gradients averaged during the backward, as in torch's DDP."""
    if batch % devices:
        return None
    weights = float(sum(u.parameter_bytes for u in plan.units))
    averaging = Interconnect(device, 1, devices).average(weights)
    return _copies(plan, device, devices, batch, DATA_PARALLEL, (0.0, averaging), STATE_COPIES * weights)


def sharded(plan: Plan, device: DeviceSpec, devices: int, batch: int) -> Split | None:
    """The same with weights, gradients and optimizer state divided over the devices, as in torch's FSDP: weights are
    gathered for forward and for backward, one unit ahead of its use, and gradients are scattered."""
    if batch % devices:
        return None
    weights = float(sum(u.parameter_bytes for u in plan.units))
    largest = max((u.parameter_bytes for u in plan.units), default=0)
    # One half of an all-reduce gathers, the other half scatters.
    once = Interconnect(device, 1, devices).average(weights) / 2
    memory = STATE_COPIES * weights / devices + 2 * largest
    return _copies(plan, device, devices, batch, SHARDED, (once, 2 * once), memory)


def _copies(
    plan: Plan, device: DeviceSpec, devices: int, batch: int, method: str, sent: tuple[float, float], state: float
) -> Split:
    """A step of copies of the model. sent: ms of messages in the forward and in the backward, which they may overlap as
    far as the device computes meanwhile. state: bytes that stay from step to step."""
    share = batch / devices / (plan.batch or 1)
    forward, backward = unit_times(plan.units, plan.cost, device, share, plan.part)
    busy = forward + backward + loss_of(plan, device) * share + _update(plan, device)
    step = busy
    for compute, messages in zip((forward, backward), sent, strict=True):
        under_way = messages * device.overlap
        step += messages - under_way + max(0.0, under_way - compute)
    memory = state + share * sum(u.saved_bytes for u in plan.units)
    rho = serial_step(plan, device, batch) / step
    return Split(method, 1, devices, 1, batch, step, rho, 1 - busy / step, memory, 0.0)


def _update(plan: Plan, device: DeviceSpec) -> float:
    weights = sum(u.parameter_bytes for u in plan.units)
    return device.overhead_us / 1e3 + STEP_PASSES * weights / (device.memory_gb_per_s * 1e6)


def fastest(rows: Sequence[Split], *methods: str) -> Split | None:
    return min((one for one in rows if one.method in methods), key=lambda one: one.step, default=None)
