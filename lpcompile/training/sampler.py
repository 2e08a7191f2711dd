"""The order of samples in an epoch, from seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler


class EpochSampler(Sampler[tuple[int, int]]):
    """Sample numbers with their epoch, shuffled by seed and epoch; `set_epoch(e, start)` skips the first ones.

    shard: (this, of) takes every `of`-th sample of each batch, for replicas.
    """

    def __init__(self, count: int, seed: int, shuffle: bool, shard: tuple[int, int] = (0, 1)) -> None:
        self.count, self.seed, self.shuffle, self.shard = count, seed, shuffle, shard
        self.epoch = self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """start: samples of this sampler (after sharding) to skip."""
        self.epoch, self.start = epoch, start

    def order(self) -> Tensor:
        """The sample numbers of this pass."""
        order = torch.arange(self.count)
        if self.shuffle:
            order = torch.randperm(self.count, generator=seeded(self.seed, self.epoch))
        this, of = self.shard
        return order[this : len(order) - len(order) % of : of][self.start :]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for i in self.order().tolist():
            yield int(i), self.epoch

    def __len__(self) -> int:
        return self.count // self.shard[1]


def seeded(*numbers: int) -> torch.Generator:
    """A generator seeded by these numbers."""
    state = 0
    for n in numbers:
        state = (state * 1_000_003 + n + 1) % 2**62
    return torch.Generator().manual_seed(state)
