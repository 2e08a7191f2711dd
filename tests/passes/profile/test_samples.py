"""How many samples a step is measured with."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.passes.profile import samples
from tests.passes.profile.prepare import prepared


def fake_steps(fixed, each):
    """A model whose steps take so many ms, and so many more for each sample; and what it was run with."""
    seen = []

    def step(tensors):
        seen.append(len(tensors[0]))
        return fixed + each * seen[-1]

    return seen, step


def test_no_step_of_all_samples_is_run_to_learn_that_it_takes_long():
    captured, _, tensors = prepared(models.resnet20(), torch.randn(32, 3, 32, 32))
    seen, step = fake_steps(0, samples.SLOW_STEP / 2)
    found = samples.affordable(captured, tensors, step)
    assert seen == [2] and len(found.tensors[0]) == 2  # BatchNorm needs two
    assert found.step == pytest.approx(samples.SLOW_STEP)
    seen, step = fake_steps(0, samples.SLOW_STEP / 16)
    found = samples.affordable(captured, tensors, step)
    assert max(seen) < 32 and len(found.tensors[0]) == 5  # a third of SLOW_STEP


def test_overhead_is_not_taken_for_work():
    captured, _, tensors = prepared(models.resnet20(), torch.randn(32, 3, 32, 32))
    seen, step = fake_steps(samples.SLOW_STEP / 20, samples.SLOW_STEP / 50)  # 16 times the first step would be too slow
    found = samples.affordable(captured, tensors, step)
    assert found.tensors is tensors and seen == [2, 2, 8]


def test_one_sample_is_enough_without_batch_norm_and_all_are_run_where_the_batch_is_fixed():
    slow = fake_steps(0, samples.SLOW_STEP)[1]
    captured, _, tensors = prepared(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8))
    assert len(samples.affordable(captured, tensors, slow).tensors[0]) == 1
    fixed = lpcompile.capture(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), Fixed()), torch.randn(4, 8))
    assert not fixed._lp.batch_free
    assert samples.affordable(fixed, tensors, slow).tensors is tensors


class Fixed(nn.Module):
    def forward(self, x):
        return x + torch.arange(float(x.shape[0] ** 2)).sum()


@pytest.mark.parametrize(("model", "count"), [
    (nn.Linear(4, 4), 1), (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), 2), (nn.LayerNorm(4), 1),
])  # fmt: skip
def test_batch_norm_needs_two_samples(model: nn.Module, count: int) -> None:
    assert samples.min_samples(lpcompile.capture(model, torch.randn(4, 4))) == count
