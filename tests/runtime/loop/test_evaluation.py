"""Evaluation of the serial model, and BatchNorm statistics taken anew."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.runtime.engine.training import assert_same, data, run, trainer_of
from tests.runtime.small import norm_mlp


def test_evaluation_is_the_serial_models_and_leaves_training_alone():
    trainer = trainer_of(norm_mlp(dropout=0.2), 3, data()[0][0], "penalty")
    run(trainer, data())
    before = copy.deepcopy(trainer.state_dict())
    found = trainer.evaluate(data(2), recalibrate=data(3), aux=True)
    model = copy.deepcopy(trainer.program.module).eval()
    losses = [F.cross_entropy(model(x), y).item() for x, y in data(2)]
    assert found["loss"] == pytest.approx(sum(losses) / 2)
    assert {"accuracy", "aux accuracy", "recalibrated accuracy", "recalibrated loss"} <= set(found)
    assert_same(trainer.state_dict(), before)
    assert all(m.training for m in trainer.program.module.modules())
    assert found["recalibrated loss"] != found["loss"]


def test_recalibration_takes_statistics_on_x_and_nothing_else():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty")
    trainer.fit(data(4))
    before = {name: t.clone() for name, t in trainer.state_dict().items()}
    reference = norm_mlp()
    reference.load_state_dict(before)
    trainer.recalibrate(data(3))
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        for x, _ in data(3):
            reference.train()(x)
    for name, tensor in trainer.state_dict().items():
        expected = reference.state_dict()[name] if "running" in name else before[name]
        torch.testing.assert_close(tensor, expected, msg=name)
    assert any(not torch.equal(before[n], t) for n, t in trainer.state_dict().items())
