"""The network between the ranks of K stages and R replicas: which links they use, and transfer times.

Rank r of replica j is device jK + r, and nodes are filled one after another, as in the runtime's mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from lpcompile.simulate.device_spec import DeviceSpec


@dataclass(frozen=True)
class Interconnect:
    """The network as the slowest replica sees it: the one with the most boundaries between nodes."""

    device: DeviceSpec
    K: int
    replicas: int = 1

    @cached_property
    def first(self) -> int:
        """The position within its node of that replica's first rank."""
        places = {j * self.K % self.device.gpus for j in range(min(self.replicas, self.device.gpus))}
        return max(sorted(places), key=lambda first: (first + self.K - 1) // self.device.gpus)

    def crosses(self, rank: int, peer: int) -> bool:
        gpus, first = self.device.gpus, self.first
        return (first + rank) // gpus != (first + peer) // gpus

    def transfer(self, rank: int, peer: int, nbytes: float) -> float:
        link = self.device.across if self.crosses(rank, peer) else self.device.inside
        return link.time(nbytes)

    def meeting(self) -> float:
        """ms of a collective of a few bytes over all stages: up and down a tree."""
        link = self.device.across if self.K > self.device.gpus else self.device.inside
        return 2 * math.ceil(math.log2(self.K)) * link.time(8) if self.K > 1 else 0.0

    def average(self, nbytes: float) -> float:
        """ms of an all-reduce over the replicas of a stage: a ring within each node, then, for each of a node's
        replicas, a ring between nodes over its part of the tensor. All stages share the node's links."""
        gpus = self.device.gpus
        near = max(1, min(self.replicas, gpus // self.K if self.K <= gpus else 1))
        nodes = math.ceil(self.replicas / near)
        return ring(near, nbytes, self.device.inside.time) + ring(nodes, nbytes / near, self._shared)

    def _shared(self, nbytes: float) -> float:
        return self.device.across.time(nbytes, min(1.0, self.device.links / self.device.gpus))


def ring(members: int, nbytes: float, time: Callable[[float], float]) -> float:
    """ms of an all-reduce: 2(n - 1) messages of 1/n each, or a tree where its lower latency makes it faster."""
    if members < 2:
        return 0.0
    return min(2 * (members - 1) * time(nbytes / members), 2 * math.ceil(math.log2(members)) * time(nbytes))
