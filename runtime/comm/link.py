"""The link between neighbouring ranks, measured before the first step: its bandwidth and its latency.

>>> found = measure()           # all ranks call it, and get the same answer: that of the slowest link
>>> found.bytes_per_ms, found.latency_ms
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from lpcompile.runtime.comm import exchange

SHORT = 8  # bytes of a message that tells the latency
FIRST, LARGEST = 2**18, 2**23  # bytes of messages that tell the bandwidth
ENOUGH_MS = 100.0  # a message that takes this long is not made longer
ROUNDS = 5  # of the short message, and at most of a long one


@dataclass(frozen=True)
class LinkTimes:
    """One direction of a link."""

    bytes_per_ms: float
    latency_ms: float


def measure(device: str = "cpu") -> LinkTimes:
    """Measure the links between ranks r and r + 1, one after another, in the open process group."""
    rank, world = dist.get_rank(), dist.get_world_size()
    found: list[tuple[float, float]] = []
    for low in range(world - 1):
        dist.barrier()
        if rank in (low, low + 1):
            times = _pair(rank == low, low + 1 if rank == low else low, device)
            found.append((times.bytes_per_ms, times.latency_ms))
    everyone = [pair for pairs in exchange.gathered(found) for pair in pairs]
    return LinkTimes(min(b for b, _ in everyone), max(t for _, t in everyone))


def _pair(first: bool, peer: int, device: str) -> LinkTimes:
    """Both sides time round trips; which size comes next is the first one's decision."""
    latency = statistics.median(_trip(first, peer, SHORT, device) for _ in range(ROUNDS))
    size, before = FIRST, 0.0
    while True:
        took = statistics.median(_trip(first, peer, size, device) for _ in range(3))
        more = torch.tensor([took < ENOUGH_MS and size < LARGEST, took], dtype=torch.float64, device=device)
        if first:
            dist.send(more, peer)
        else:
            dist.recv(more, peer)
        took = float(more[1])
        if not bool(more[0]):
            break
        size, before = 2 * size, took
    # the second half of the longest message: its first part may have passed faster, from a shaper's or card's buffer
    part, whole = (size / 2, took - before) if 0 < before < took else (float(size), took - latency)
    return LinkTimes(part / max(whole, 1e-6), latency)


def _trip(first: bool, peer: int, size: int, device: str) -> float:
    """ms of one direction: half a round trip."""
    tensor = torch.ones(size, dtype=torch.uint8, device=device)
    begin = time.perf_counter()
    for sends in (first, not first):
        if sends:
            dist.send(tensor, peer)
        else:
            dist.recv(tensor, peer)
    return 1e3 * (time.perf_counter() - begin) / 2
