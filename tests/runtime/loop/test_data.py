"""The data of a run: what the loop asks of loaders and samplers, and what ranks compare."""

from __future__ import annotations

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from lpcompile.runtime.loop.data import first_batches, set_epoch, skipping
from lpcompile.training.sampler import EpochSampler
from tests.runtime.small import batches, compiled, norm_mlp, sgd

DATA = TensorDataset(torch.arange(12))


class Turned(RandomSampler):
    """A sampler of the user's own: its order follows the epoch; `start` is its first sample, and no number to skip."""

    start = 5

    def set_epoch(self, epoch):
        self.epoch = epoch


class Batched(BatchSampler):
    def set_epoch(self, epoch):
        self.epoch = epoch


def test_only_a_sampler_that_takes_a_start_begins_in_the_middle():
    ours = EpochSampler(12, 0, True)
    assert skipping(DataLoader(DATA, 4, sampler=ours)) is ours
    assert skipping(DataLoader(DATA, 4, sampler=Turned(DATA))) is None and skipping([1, 2]) is None
    assert len(list(first_batches(DataLoader(DATA, 4, sampler=Turned(DATA)), 2))) == 2


def test_samplers_of_batches_learn_the_epoch_too():
    single, several = Turned(DATA), Batched(RandomSampler(DATA), 4, False)
    set_epoch(DataLoader(DATA, 4, sampler=single), 3)
    set_epoch(DataLoader(DATA, batch_sampler=several), 4)
    set_epoch([1, 2], 5)
    assert (single.epoch, several.epoch) == (3, 4)


def test_a_run_tells_a_sampler_of_batches_the_epoch():
    (x, y), seen = batches(1, dtype=torch.float32)[0], []

    class Seen(Batched):
        def set_epoch(self, epoch):
            seen.append(epoch)

    data = TensorDataset(x, y)
    trainer = compiled(norm_mlp(), 2, x).trainer(torch.nn.functional.cross_entropy, optimizer=sgd, method="bp")
    trainer.fit(DataLoader(data, batch_sampler=Seen(RandomSampler(data), 4, False)), 2)
    assert seen == [0, 1]
