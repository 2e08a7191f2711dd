"""A boundary that collapses or is not finite is named, with the remedy."""

from __future__ import annotations

import pytest
import torch

from lpcompile.errors import TrainingError
from lpcompile.runtime.health import collapse
from tests.runtime.engine.training import data, trainer_of
from tests.runtime.small import norm_mlp


@pytest.mark.parametrize("policy", ["stop", "warn"])
def test_a_boundary_that_collapses_is_named(policy):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", collapse=policy, check_every=1, recouple=0)
    trainer.step(*data()[0])
    for p in trainer.auxnets[1].module.parameters():
        torch.nn.init.zeros_(p)
    words = r"step 1, rank \d, boundary 1: λ is nearly the same for all samples .*lam_weight=0.5"
    if policy == "stop":
        with pytest.raises(TrainingError, match=words):
            trainer.step(*data()[1])
    else:
        with pytest.warns(UserWarning, match=words):
            trainer.step(*data()[1])


def test_values_that_are_not_finite_stop_training():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", check_every=1000)
    trainer.step(*data()[0])
    x, y = data()[0]
    with pytest.raises(
        TrainingError, match=r"step 1, rank \d.*the gradient of \S+ is not finite; lower the learning rate"
    ):
        trainer.step(x * float("inf"), y)


def check(varied, **tensors):
    return collapse.check(varied, 0, 1, 7, {name: [t] for name, t in tensors.items()})


def test_a_tensor_that_never_varied_is_fine_and_one_that_did_is_not():
    varied = set()
    check(varied, X=torch.ones(4, 3))
    check(varied, X=torch.randn(4, 3))
    assert "step 7, rank 0, boundary 1: X is nearly the same for all samples" in check(varied, X=torch.ones(4, 3))


def test_a_single_sample_shows_no_collapse_but_infinity():
    varied = {(1, "X", 0)}
    check(varied, X=torch.ones(1, 3))
    with pytest.raises(TrainingError, match="X is not finite"):
        check(varied, X=torch.full((1, 3), torch.inf))


def test_variance_is_relative_to_the_size_of_the_values():
    x = torch.tensor([[1.0], [3.0]])
    assert collapse.relative_variance(x) == pytest.approx(1 / 5)
    assert collapse.relative_variance(1000 * x) == pytest.approx(1 / 5)
    assert collapse.relative_variance(torch.zeros(2, 2)) == 0.0
