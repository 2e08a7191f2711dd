"""Optimizers of a rank: loss scale, clipping, and which of them step."""

from __future__ import annotations

import copy

import torch

from tests.runtime.engine.training import data, trainer_of
from tests.runtime.small import norm_mlp


def test_float16_scales_the_loss_and_skips_steps_that_overflow():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], autocast=torch.float16)
    updater = trainer.workers[0].updater
    assert updater.scale == 2.0**16
    before = copy.deepcopy(trainer.state_dict()["6.weight"])
    x, y = data()[0]
    trainer.workers[0].updater.scale = trainer.workers[1].updater.scale = 1e38
    trainer.step(x, y)
    assert torch.equal(before, trainer.state_dict()["6.weight"]) and updater.scale == 5e37
    trainer.workers[0].updater.scale = trainer.workers[1].updater.scale = 1024.0
    trainer.step(x, y)
    assert not torch.equal(before, trainer.state_dict()["6.weight"])
