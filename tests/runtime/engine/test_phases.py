"""Warm-up, decoupled, exact finish: which method runs when, and switching between methods."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import lpcompile
from tests.runtime.engine.training import adam, assert_same, data, run, trainer_of
from tests.runtime.small import compiled, norm_mlp, sgd


def test_switching_to_bp_keeps_optimizer_state_and_goes_on_exactly():
    trainer = trainer_of(norm_mlp(), 3, data()[0][0], "multiplier", micro=2)
    run(trainer, data(3))
    trainer.flush()
    model, momentum = copy.deepcopy(trainer.program.module), {}
    for w in trainer.workers:
        for p, s in w.updater.optimizer.state.items():
            name = next(n for n, q in trainer.program.module.named_parameters() if q is p)
            momentum[name] = s["momentum_buffer"].clone()
    trainer.switch("bp", micro=1, clip=0)
    found, _ = run(trainer, data(2, seed=8))
    optimizer = sgd(list(model.parameters()))
    for name, p in model.named_parameters():
        optimizer.state[p]["momentum_buffer"] = momentum[name]
    for x, y in data(2, seed=8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert_same(found, model.state_dict())
    trainer.switch("penalty", micro=1)
    assert trainer.step(*data()[0])["violation 1"] > 0


def test_a_warm_up_ends_when_the_auxnets_are_near_enough(caplog):
    options = {"warmup": 400, "warmup_violation": 0.35, "aux_optimizer": adam, "beta": 1.0}
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", **options)
    x, y = data()[0]
    with caplog.at_level("INFO", "lpcompile"):
        while trainer.method.name == "warmup":
            trainer.step(x, y)
    assert 0 < trainer.steps < 400 and trainer.violation_at_start < 0.35
    assert "decoupled after a warm-up, largest violation" in caplog.text


@pytest.mark.parametrize(("init", "warm"), [("fresh", True), ("consistent", False)])
def test_auxnets_that_start_elsewhere_are_warmed_up(init, warm):
    model, x = lpcompile.models.ResNet(14, 3, width=4), torch.randn(8, 3, 8, 8)
    program = compiled(model, 2, x, aux_init=init)
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="penalty", total_steps=50)
    assert (trainer.method.name == "warmup") is warm and trainer.warmup == (5 if warm else 0)
    for _ in range(6):
        trainer.step(x, torch.arange(8) % 3)
    assert trainer.method.name == "penalty"
    asked = program.trainer(F.cross_entropy, optimizer=sgd, method="penalty", warmup=0)
    assert asked.method.name == "penalty"


def test_the_last_steps_may_be_exact(caplog):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "multiplier", micro=2, total_steps=5, finish=2)
    with caplog.at_level("INFO", logger="lpcompile"):
        methods = [trainer.step(*batch)["method"] for batch in data(5)]
    assert methods == ["multiplier"] * 3 + ["bp"] * 2
    assert "step 3: the last 2 steps are exact" in caplog.text
