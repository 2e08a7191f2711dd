"""Plain training, bit for bit, where a method must be that: K = 1, `bp`, and options that change no gradient."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.runtime.methods import METHODS
from tests.runtime.engine.training import adam, assert_same, data, plain, run, trainer_of
from tests.runtime.small import Wide, norm_mlp, sgd


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [sgd, adam])
def test_with_one_stage_every_method_is_plain_training_bitwise(method, make):
    model = norm_mlp(dropout=0.3)
    torch.manual_seed(1)
    expected = plain(model, data(last=5), make)
    torch.manual_seed(1)
    assert_same(run(trainer_of(model, 1, data()[0][0], method, make=make), data(last=5))[0], expected)


@pytest.mark.parametrize("K", [2, 3])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_bp_is_plain_training_bitwise(K, clip):
    model = norm_mlp()
    expected = plain(model, data(last=5))
    if clip is None:
        assert_same(run(trainer_of(model, K, data()[0][0]), data(last=5))[0], expected)
    else:  # the norm is summed in another order over ranks
        expected = plain(model, data(), clip=clip)
        found, _ = run(trainer_of(model, K, data()[0][0], clip=clip), data())
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_bp_with_several_inputs_a_dict_output_and_tied_parameters():
    torch.manual_seed(0)
    model = Wide()
    given = [((x, torch.arange(len(x)) % 10), y) for x, y in data()]
    loss = lambda out, y: F.cross_entropy(out["logits"], y)  # noqa: E731
    expected = plain(model, given, loss=loss)
    trainer = trainer_of(model, 3, given[0][0], loss=loss)
    assert trainer.plan.tied
    found, _ = run(trainer, given)
    for name, tensor in expected.items():  # autograd adds a tied parameter's uses one by one, we stage by stage
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-7)


def test_bp_follows_lr_schedulers_and_accumulation():
    model = norm_mlp()
    scheduler = lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)  # noqa: E731
    expected = plain(model, data(), scheduler=scheduler)
    assert_same(run(trainer_of(model, 2, data()[0][0], scheduler=scheduler), data())[0], expected)
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], accumulate=2)
    before = copy.deepcopy(trainer.state_dict())
    trainer.step(*data()[0])
    assert torch.equal(before["0.linear.weight"], trainer.state_dict()["0.linear.weight"])
    trainer.step(*data()[1])
    assert not torch.equal(before["0.linear.weight"], trainer.state_dict()["0.linear.weight"])


def test_autocast_matches_plain_autocast_training():
    model, (x, y) = norm_mlp(), data()[0]
    other = copy.deepcopy(model)
    optimizer = sgd(list(other.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(other(x), y)
    loss.backward()
    optimizer.step()
    found, _ = run(trainer_of(model, 3, x, autocast=torch.bfloat16), [(x, y)])
    assert_same(found, other.state_dict())


def test_recomputing_activations_changes_nothing():
    torch.manual_seed(4)
    left, _ = run(trainer_of(norm_mlp(dropout=0.2), 2, data()[0][0], "penalty"), data())
    torch.manual_seed(4)
    right, _ = run(trainer_of(norm_mlp(dropout=0.2), 2, data()[0][0], "penalty", checkpoint=True), data())
    assert_same(left, right)


def test_the_users_random_numbers_are_left_alone():
    trainer = trainer_of(norm_mlp(dropout=0.5), 2, data()[0][0], "penalty", noise=0.1)
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    trainer.step(*data()[0])
    assert torch.equal(torch.rand(3), expected)


class Shared(nn.Module):
    """Two blocks of three layers each; one of them runs in both stages."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
        self.a, self.b = (nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)]) for _ in range(2))

    def forward(self, x):
        return self.head(self.a(self.b(self.a(self.stem(x)))))


@pytest.mark.parametrize("method", ["bp", "gpipe", "penalty", "dgl", "pipedream"])
def test_ranks_of_one_process_sum_the_gradients_of_several_shared_blocks(method):
    torch.manual_seed(0)
    model, given = Shared(), data(3)
    trainer = trainer_of(model, 2, given[0][0], method, micro=2 if method == "gpipe" else None)
    assert len(trainer.plan.tied) > 1
    expected = plain(model, given) if method == "bp" else None
    state, metrics = run(trainer, given)
    assert all(torch.tensor(m["loss"]).isfinite() for m in metrics if "loss" in m)
    if expected is not None:
        assert_same(state, expected)
