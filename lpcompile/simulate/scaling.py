"""Scaling: the step time of K stages x R replicas on many devices, against data parallelism and pipelines.

>>> rows = splits(plan, device_spec("h100"), devices=64, batch=4096, methods=("multiplier", "1f1b"))
>>> fastest(rows, "multiplier").K
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.errors import PlanError, UsageError
from lpcompile.planning.replan import replan
from lpcompile.simulate.device_spec import DeviceSpec
from lpcompile.simulate.interconnect import Network
from lpcompile.simulate.op_costs import STEP_PASSES, costs_of, loss_of, unit_times
from lpcompile.simulate.rank_memory import STATE_COPIES, rank_memory
from lpcompile.simulate.step import Simulation, play

DATA_PARALLEL = "data parallel"


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
    found = simulated(plan, device, method, K, replicas, batch)
    if found is None:
        return None
    simulation, memory = found
    serial = serial_step(plan, device, batch)
    return Split(method, K, replicas, simulation.micro, batch, simulation.step, serial / simulation.step,
                 max(simulation.idle), max(memory), sum(simulation.sent))  # fmt: skip


def simulated(
    plan: Plan, device: DeviceSpec, method: str, K: int, replicas: int, batch: int
) -> tuple[Simulation, list[float]] | None:
    """The simulation of one replica, and its memory in bytes by rank."""
    if batch % replicas:
        return None
    mine, share = batch // replicas, batch / replicas / (plan.batch or 1)
    try:
        again = _replan(plan, K, method)
        schedule = _schedule(replace(again, batch=mine), replicas > 1)
    except (PlanError, UsageError):  # no such number of micro-batches, or of stages
        return None
    if schedule is None:
        return None
    costs = costs_of(again, device, schedule.micro, share)
    return play(schedule, costs, Network(device, K, replicas)), rank_memory(again, schedule, share)


@lru_cache(maxsize=256)
def _replan(plan: Plan, K: int, method: str) -> Plan:
    return replan(plan, K, method)


@lru_cache(maxsize=64)
def _schedule(plan: Plan, several: bool) -> Schedule | None:
    from lpcompile.runtime.engine.schedules import default_schedule

    return default_schedule(plan, 2 if several else 1)


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
    share = batch / devices / (plan.batch or 1)
    forward, backward = unit_times(plan.units, plan.cost, device, share, plan.part)
    weights = float(sum(u.parameter_bytes for u in plan.units))
    averaging = Network(device, 1, devices).average(weights)
    busy = forward + backward + loss_of(plan, device) * share + _update(plan, device)
    step = busy + max(0.0, averaging - backward)
    memory = STATE_COPIES * weights + share * sum(u.saved_bytes for u in plan.units)
    return Split(DATA_PARALLEL, 1, devices, 1, batch, step, serial_step(plan, device, batch) / step, 1 - busy / step,
                 memory, 0.0)  # fmt: skip


def _update(plan: Plan, device: DeviceSpec) -> float:
    weights = sum(u.parameter_bytes for u in plan.units)
    return device.overhead_us / 1e3 + STEP_PASSES * weights / (device.memory_gb_per_s * 1e6)


def fastest(rows: Sequence[Split], *methods: str) -> Split | None:
    return min((one for one in rows if one.method in methods), key=lambda one: one.step, default=None)
