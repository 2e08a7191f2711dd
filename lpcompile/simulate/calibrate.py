"""The device spec of this machine, measured in a few seconds: slowdown of K processes at once, time of messages.

>>> calibrate(2)          # DeviceSpec('this-machine', memory_gb_per_s=..., inside=LinkSpec(...), scale=...)

Plans are measured by one process. With one process on every core, caches and memory are shared and all are slower:
that is `scale`. Nothing here depends on methods, schedules or models.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lpcompile.runtime.launch import launch
from lpcompile.simulate.device_spec import THIS_MACHINE, DeviceSpec, LinkSpec

ROUNDS = 15
MESSAGE = 2**21  # float32 numbers of a long message: 8 MiB


def calibrate(processes: int = 2, rounds: int = ROUNDS) -> DeviceSpec:
    """Measure with this many processes, one per core; the machine should be idle otherwise."""
    found = launch.launch(_measure, (rounds,), world=processes)
    return spec_of(found, processes)


def spec_of(found: dict[str, float], processes: int) -> DeviceSpec:
    """The spec from times in ms: `alone` and `together` are the same work on one process and on all, `ping` and
    `message` a short and a long message, `during` the work while a long message comes in and another goes out, `add` an
    addition of two long tensors, `unit` the forward of a block at one sample."""
    nbytes = 4 * MESSAGE
    transfer = max(found["message"] - found["ping"], 1e-3)
    busy = max(0.0, found["during"] - found["together"]) / (2 * found["message"])  # one comes, one goes
    return replace(
        THIS_MACHINE,
        memory_gb_per_s=3 * nbytes / found["add"] / 1e6,
        inside=LinkSpec(nbytes / transfer / 1e6, 1e3 * found["ping"]),
        scale=min(1.0, found["alone"] / found["together"]),
        overhead_us=1e3 * found["unit"],
        overlap=1 - min(1.0, busy),
        gpus=processes,
    )


class ConvBlock(nn.Module):
    """A residual block, like the units of most models."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.branch(x))


def _measure(rounds: int) -> dict[str, float]:
    """Runs on every rank; rank 0's times are used."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(*(ConvBlock(16) for _ in range(4)))
    x, tiny = torch.randn(32, 16, 32, 32), torch.randn(1, 16, 2, 2)
    long, other, total = torch.randn(MESSAGE), torch.randn(MESSAGE), torch.empty(MESSAGE)

    def work() -> None:
        model(x).sum().backward()

    def during() -> None:
        works = _exchange(long, other, rank, world)
        work()
        for one in works:
            one.wait()

    def forward() -> None:
        with torch.no_grad():
            model[0](tiny)

    found: dict[str, float] = {}
    alone: dict[str, Callable[[], Any]] = {
        "alone": work,
        "add": lambda: torch.add(long, other, out=total),
        "unit": forward,
    }
    for name, function in alone.items():
        dist.barrier()
        if rank == 0:
            found[name] = _median(function, rounds)
    dist.barrier()
    short = torch.zeros(2)
    for name, function in {
        "together": work,
        "ping": lambda: _pass_around(short, rank, world),
        "message": lambda: _pass_around(long, rank, world),
        "during": during,
    }.items():
        dist.barrier()
        found[name] = _median(function, rounds)
    found["ping"] /= world
    found["message"] /= world
    return found


def _median(function: Callable[[], Any], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[rounds // 5 :])


def _pass_around(tensor: Tensor, rank: int, world: int) -> None:
    """Send a tensor around the ring of ranks: `world` messages, one after another."""
    if world == 1:
        return
    after, before = (rank + 1) % world, (rank - 1) % world
    if rank == 0:
        dist.send(tensor, after)
        dist.recv(tensor, before)
    else:
        dist.recv(tensor, before)
        dist.send(tensor, after)


def _exchange(mine: Tensor, theirs: Tensor, rank: int, world: int) -> list[Any]:
    if world == 1:
        return []
    return [dist.isend(mine, (rank + 1) % world), dist.irecv(theirs, (rank - 1) % world)]
