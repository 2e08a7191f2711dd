"""Micro-batches train the loss of the batch whatever the loss: labels left out, a sum, or samples in pairs."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile.errors import UsageError
from tests.runtime.small import norm_mlp, sgd

WEIGHTS = torch.tensor([0.2, 1.0, 3.0])


class Statistics(nn.Module):
    """A user's own batch norm, whose buffers are replaced in forward."""

    def __init__(self, width=6):
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def mlp(depth=6):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(depth)], nn.Linear(6, 3))


def batch(size=16, ignored=6):
    x, y = torch.randn(size, 6, generator=torch.Generator().manual_seed(1)), torch.arange(size) % 3
    return x, torch.where(torch.arange(size) < ignored, -100, y)


def pairs(z, y):
    """A contrastive loss: samples of the same class attract each other."""
    s = F.normalize(z, dim=1) @ F.normalize(z, dim=1).T - 100 * torch.eye(len(z))
    same = (y[:, None] == y[None]) & ~torch.eye(len(z), dtype=torch.bool)
    return -(s.log_softmax(1) * same).sum() / same.sum()


def weighted(z, y):
    return F.cross_entropy(z, y, weight=WEIGHTS)


def summed(z, y):
    return F.cross_entropy(z, y, reduction="sum") / 10


def in_a_dict(z, y):
    return F.cross_entropy(z, y["labels"])


def trainer_of(model, x, loss, **options):
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", gate=False)
    return program.trainer(loss, optimizer=sgd, **options)


def plain_step(model, x, y, loss):
    found = loss(model(x), y)
    optimizer = sgd(list(model.parameters()))
    found.backward()
    optimizer.step()
    return found.item(), model.state_dict()


@pytest.mark.parametrize(
    ("loss", "ignored", "reduction", "micro"),
    [
        (F.cross_entropy, 6, "labels", 4),  # the first micro-batch has no label that counts
        (F.cross_entropy, 0, "labels", 4),
        (in_a_dict, 6, "labels", 4),
        (summed, 0, "sum", 4),
        (weighted, 0, "samples", 1),
        (pairs, 0, "samples", 1),
    ],
)
def test_the_default_trains_the_loss_of_the_batch(loss, ignored, reduction, micro):
    x, y = batch(ignored=ignored)
    y = {"labels": y} if loss is in_a_dict else y
    model, plain = mlp(), mlp()
    trainer = trainer_of(model, x, loss)
    assert trainer.micro == 4
    found = trainer.step(x, y)["loss"]
    wanted, state = plain_step(plain, x, y, loss)
    assert (trainer.reduction, trainer.micro) == (reduction, micro) and found == pytest.approx(wanted, rel=1e-5)
    for name, tensor in trainer.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["zbh2", "penalty", "multiplier", "stream"])
def test_a_batch_that_stays_whole_says_so_and_what_would_cut_it(method, caplog):
    x, y = batch(64, ignored=0)
    trainer = trainer_of(mlp(), x, pairs, method=method)
    cut = trainer.micro > 1
    trainer.step(x, y)
    trainer.step(x, y)
    said = "neither the mean nor the sum of the losses of its parts" in caplog.text
    assert trainer.micro == 1 and said == cut and caplog.text.count("reduction='samples' trains") == cut


@pytest.mark.parametrize("options", [{"micro": 4}, {"method": "1f1b"}])
def test_micro_batches_that_were_asked_for_are_refused_where_they_train_another_loss(options):
    x, y = batch(ignored=0)
    with pytest.raises(UsageError, match="train another loss; pass micro=1, or reduction='samples'"):
        trainer_of(mlp(), x, pairs, **options).step(x, y)
    trainer = trainer_of(mlp(), x, pairs, **options, reduction="samples")
    assert trainer.step(x, y)["loss"] > 0 and trainer.micro > 1


def test_measuring_leaves_no_trace():
    """No statistics, no random numbers, and a loss with chance inside is taken for a mean."""

    def trained(reduction):
        torch.manual_seed(3)
        model = nn.Sequential(norm_mlp(dropout=0.3)[:6], Statistics(), nn.Linear(6, 3))
        trainer = trainer_of(model, batch()[0], F.cross_entropy, reduction=reduction, micro=2)
        trainer.step(*batch(ignored=0))
        return copy.deepcopy(trainer.state_dict()), torch.rand(1)

    (left, a), (right, b) = trained(None), trained("labels")
    assert a == b and all(torch.equal(left[name], right[name]) for name in left)
    trainer = trainer_of(mlp(), batch()[0], lambda z, y: F.cross_entropy(z, y) * torch.rand(()))
    trainer.step(*batch(ignored=0))
    assert trainer.reduction == "samples" and trainer.micro == 4
