"""Where the ranks of K stages and R replicas stand, and what it takes to get tensors between them.

Rank r of replica j is device jK + r, nodes are filled one after another: as the runtime's mesh numbers them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from lpcompile.simulate.device_spec import DeviceSpec


@dataclass(frozen=True)
class Network:
    """One replica's view: the one with the most boundaries between nodes, for the step waits for all."""

    device: DeviceSpec
    K: int
    replicas: int = 1

    @cached_property
    def first(self) -> int:
        """The place, within a node, of the first rank of that replica."""
        places = {j * self.K % self.device.gpus for j in range(min(self.replicas, self.device.gpus))}
        return max(sorted(places), key=lambda first: (first + self.K - 1) // self.device.gpus)

    def crosses(self, rank: int, peer: int) -> bool:
        gpus, first = self.device.gpus, self.first
        return (first + rank) // gpus != (first + peer) // gpus

    def transfer(self, rank: int, peer: int, nbytes: float) -> float:
        link = self.device.across if self.crosses(rank, peer) else self.device.inside
        return link.time(nbytes)

    def meeting(self) -> float:
        """ms of a collective of a few bytes over the stages: a tree up and down."""
        link = self.device.across if self.K > self.device.gpus else self.device.inside
        return 2 * math.ceil(math.log2(self.K)) * link.time(8) if self.K > 1 else 0.0

    def average(self, nbytes: float) -> float:
        """ms of an all-reduce over the replicas of a stage: rings within nodes, and between them one ring for each of
        the node's replicas over its part of the tensor. All stages do this at once and share the node's links."""
        gpus = self.device.gpus
        near = max(1, min(self.replicas, gpus // self.K if self.K <= gpus else 1))
        nodes = math.ceil(self.replicas / near)
        return ring(near, nbytes, self.device.inside.time) + ring(nodes, nbytes / near, self._shared)

    def _shared(self, nbytes: float) -> float:
        return self.device.across.time(nbytes, min(1.0, self.device.links / self.device.gpus))


def ring(members: int, nbytes: float, time: Callable[[float], float]) -> float:
    """2(n - 1) messages of an n-th part each; over many members a tree, whose latency grows more slowly."""

    if members < 2:
        return 0.0
    return min(2 * (members - 1) * time(nbytes / members), 2 * math.ceil(math.log2(members)) * time(nbytes))
