"""A boundary that collapses or is not finite is named, with the remedy."""

from __future__ import annotations

import pytest
import torch

from lpcompile.errors import TrainingError
from tests.runtime.engine.training import data, trainer_of
from tests.runtime.small import norm_mlp


@pytest.mark.parametrize("policy", ["stop", "warn"])
def test_a_boundary_that_collapses_is_named(policy):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", collapse=policy, check_every=1)
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
    with pytest.raises(TrainingError, match=r"step 1, rank \d.*the (loss|violation) is nan; lower the learning rate"):
        trainer.step(x * float("inf"), y)
