"""Where each way to train is fastest: over the number of ranks, the samples of a step, and the rate of their links.

>>> for region in regions(plan, device_spec("10gbe-cpu"), (2, 8), (64, 256), (1e9, 1e8)):
...     print(region.K, region.batch, region.rate, region.fastest().method)

Every rank is a device on a host of its own (or `gpus` of them on one). All use the same number of devices: K stages, or
K copies of the model. Times of a step are simulated; nothing is said about accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lpcompile.core.plan import Plan
from lpcompile.core.system.progress import Progress, silent
from lpcompile.runtime.methods import METHODS
from lpcompile.simulate.device_spec import DeviceSpec, LinkSpec, apart
from lpcompile.simulate.scaling import DATA_PARALLEL, SHARDED, Split, data_parallel, sharded, split

FAMILIES: dict[str, tuple[str, ...]] = {
    "DDP": (DATA_PARALLEL,),
    "FSDP": (SHARDED,),
    "pipeline": ("1f1b", "zb", "zbh2"),
    "stream": ("stream",),
    "AuxNets": ("penalty", "multiplier"),
}
STAGES = (2, 4, 8, 16)
BATCHES = (16, 64, 256, 1024)
RATES = ("100gbit", "10gbit", "1gbit", "100mbit", "25mbit")
WHOLE: dict[str, Callable[[Plan, DeviceSpec, int, int], Split | None]] = {
    DATA_PARALLEL: data_parallel,
    SHARDED: sharded,
}


@dataclass(frozen=True)
class Region:
    """One number of ranks, batch and rate (bits per second). splits: the fastest of each family that runs there and
    fits into a device's memory, the fastest first."""

    K: int
    batch: int
    rate: float
    splits: tuple[Split, ...]

    def among(self, exact: bool) -> tuple[Split, ...]:
        """All, or those with plain training's gradients."""
        return tuple(one for one in self.splits if not exact or is_exact(one.method))

    def fastest(self, exact: bool = False) -> Split | None:
        return next(iter(self.among(exact)), None)

    def lead(self, exact: bool = False) -> float:
        """The step of the next family over the fastest one's; 1 where there is no other."""
        found = self.among(exact)
        return found[1].step / found[0].step if len(found) > 1 else 1.0


def family(method: str) -> str:
    return next(name for name, methods in FAMILIES.items() if method in methods)


def is_exact(method: str) -> bool:
    return method in WHOLE or METHODS[method].exact


def regions(
    plan: Plan,
    device: DeviceSpec,
    stages: Sequence[int],
    batches: Sequence[int],
    rates: Sequence[float],
    gpus: int = 1,
    progress: Progress = silent,
) -> list[Region]:
    """One for each combination, in that order. gpus: devices on a host."""
    places = [(K, batch) for K in stages for batch in batches]
    found = []
    for number, (K, batch) in enumerate(places):
        for rate in rates:
            progress(number / len(places), f"simulating {K} ranks, batch {batch}")
            link = LinkSpec(rate / 8e9, device.across.latency_us)
            found.append(_region(plan, replace(apart(link, device), gpus=gpus), K, batch, rate))
    return found


def _region(plan: Plan, device: DeviceSpec, K: int, batch: int, rate: float) -> Region:
    best = []
    for methods in FAMILIES.values():
        ran = [_one(plan, device, method, K, batch) for method in methods]
        fits = [one for one in ran if one is not None and not too_large(one, device)]
        if fits:
            best.append(min(fits, key=lambda one: one.step))
    return Region(K, batch, rate, tuple(sorted(best, key=lambda one: one.step)))


def _one(plan: Plan, device: DeviceSpec, method: str, K: int, batch: int) -> Split | None:
    if method in WHOLE:
        return WHOLE[method](plan, device, K, batch)
    return split(plan, device, method, K, 1, batch) if K <= len(plan.units) else None


def too_large(one: Split, device: DeviceSpec) -> bool:
    return device.memory_gib is not None and one.memory > device.memory_gib * 2**30
