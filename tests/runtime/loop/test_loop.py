"""Parts of the training loop that need no trainer, or a trainer in this process."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lpcompile.errors import InputError, UsageError
from lpcompile.runtime.loop.data import first_batches
from lpcompile.runtime.loop.evaluate import accuracy
from lpcompile.runtime.loop.fit import Shard
from lpcompile.runtime.loop.loop import after_restart, run
from lpcompile.runtime.loop.options import LoopOptions
from tests.runtime.small import batches, compiled, norm_mlp, sgd


class Promised(list):
    """Batches with another length than they have."""

    def __init__(self, batches, length):
        super().__init__(batches)
        self.length = length

    def __len__(self):
        return self.length


class Sampler:
    epoch, start = 3, 2

    def set_epoch(self, epoch, start=0):
        self.epoch, self.start = epoch, start


class Loader:
    """The samples of an epoch from `sampler.start` on."""

    def __init__(self):
        self.sampler = Sampler()

    def __iter__(self):
        return iter(range(self.sampler.start, 6))


def test_the_first_batches_are_the_epochs_own_after_a_resumed_run_began_in_its_middle():
    loader = Loader()
    assert next(iter(loader)) == 2
    assert list(first_batches(loader, 3)) == [0, 1, 2] and loader.sampler.epoch == 3


def test_a_loader_without_a_length_is_refused():
    with pytest.raises(UsageError, match="a loader without a length cannot be resumed"):
        run(None, iter([]), 1)


@pytest.mark.parametrize(("length", "said"), [
    (4, "the loader ended after 3 of 4 batches that its length promises; let its len"),
    (2, "the loader gives more than the 2 batches that its length promises; let its len"),
])  # fmt: skip
def test_a_loader_with_another_length_than_it_says_is_refused(length, said):
    data = batches(3, dtype=torch.float32)
    t = compiled(norm_mlp(), 2, data[0][0]).trainer(F.cross_entropy, optimizer=sgd, method="bp")
    with pytest.raises(InputError, match=said):
        run(t, Promised(data, length), 2, watch=LoopOptions(evaluate_every=0, train_batches=0))


def test_a_job_that_an_elastic_launcher_has_started_again_goes_on_unasked(monkeypatch):
    saved, alone = LoopOptions(save="run"), LoopOptions()
    assert after_restart(saved) == saved
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert after_restart(saved).resume and not after_restart(alone).resume


def test_replicas_share_every_batch_between_them():
    batch = (torch.arange(6), {"y": torch.arange(6) + 10}, "name")
    first, second = (next(iter(Shard([batch], this, 2))) for this in range(2))
    assert first[0].tolist() == [0, 2, 4] and second[1]["y"].tolist() == [11, 13, 15] and second[2] == "name"
    assert len(Shard([batch], 0, 2)) == 1


def test_accuracy_is_for_classes_only():
    output, target = torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])
    assert float(accuracy(output, target)["accuracy"]) == 0.5
    assert accuracy(output, output) == {} and accuracy({"logits": output}, target) == {}
