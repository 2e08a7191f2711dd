"""Exact steps come back when λ leaves X, and go when it is near again; a collapse leads to them first."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile.errors import TrainingError
from lpcompile.runtime.health import coupling
from tests.runtime.engine.training import adam, data, trainer_of
from tests.runtime.small import compiled, linear_auxnets, norm_mlp, sgd


def steps(trainer, count):
    x, y = data()[0]
    return [trainer.step(x, y)["method"] for _ in range(count)]


@pytest.mark.parametrize("method", ["penalty", "multiplier"])
def test_exact_steps_take_over_where_lambda_is_far_from_x_and_end_when_it_is_near(method, caplog):
    options = {"auxnets": linear_auxnets(3, dtype=torch.float32), "aux_optimizer": adam, "recouple": 0.6}
    trainer = trainer_of(norm_mlp(), 3, data()[0][0], method, micro=2, **options)
    with caplog.at_level("INFO", "lpcompile"):
        assert steps(trainer, 11) == [method] * 10 + ["warmup"]
        while trainer.method.name == "warmup" and trainer.steps < 500:
            steps(trainer, 1)
    assert trainer.steps < 500 and trainer.at.exact == trainer.steps - 1 - 10
    assert trainer.step(*data()[0])["exact steps"] == trainer.at.exact
    assert "step 10: the violation of boundary" in caplog.text and "more than recouple=0.6" in caplog.text
    assert f"decoupled again after {trainer.at.exact} exact steps" in caplog.text


def test_decoupling_is_refused_while_lambda_is_far_from_x(caplog):
    model, x = lpcompile.models.ResNet(14, 3, width=4), torch.randn(8, 3, 8, 8)
    program = compiled(model, 2, x, aux_init="copy")
    still = lambda ps: torch.optim.SGD(ps, 0.0)  # noqa: E731
    trainer = program.trainer(F.cross_entropy, optimizer=still, method="penalty", warmup=3, recouple=0.1)
    assert [trainer.step(x, torch.arange(8) % 3)["method"] for _ in range(30)] == ["warmup"] * 30
    assert "step 3: decoupling is refused: the violation of boundary 1 is" in caplog.text and trainer.at.exact == 27


def test_every_further_stretch_of_exact_steps_is_twice_as_long():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", recouple=1.0)
    for stretch in (20, 40, 80):
        coupling.couple(trainer, "asked for by a test")
        trainer.settings = trainer.settings.__class__(recouple=100.0)
        begin = trainer.steps
        while trainer.method.name == "warmup":
            steps(trainer, 1)
        assert stretch <= trainer.steps - begin <= stretch + 20


def collapsed(learns, policy="stop"):
    nets = linear_auxnets(2, dtype=torch.float32)
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", auxnets=nets, check_every=5, collapse=policy,
                         recouple=1e9, aux_optimizer=adam)  # fmt: skip
    steps(trainer, 9)  # the next one is checked
    nn.init.zeros_(nets[0].weight)
    if not learns:
        nets[0].requires_grad_(False)
    return trainer


def test_values_that_stop_varying_bring_exact_steps_first(caplog):
    trainer = collapsed(learns=True)
    with caplog.at_level("INFO", "lpcompile"):
        assert steps(trainer, 2) == ["penalty", "warmup"]
        steps(trainer, 40)
    assert "boundary 1: λ is nearly the same for all samples" in caplog.text
    assert "step 30: decoupled again after 20 exact steps" in caplog.text


@pytest.mark.parametrize("policy", ["stop", "warn"])
def test_values_that_do_not_recover_end_training_with_advice_for_the_method(policy, monkeypatch):
    monkeypatch.setattr(coupling, "RECOVERY_STEPS", 10)
    trainer = collapsed(learns=False, policy=policy)
    words = r"boundary 1: λ is nearly the same .* also after \d+ exact steps; try let β start smaller .*aux_budget"
    if policy == "stop":
        with pytest.raises(TrainingError, match=words):
            steps(trainer, 40)
    else:
        with pytest.warns(UserWarning, match=words):
            steps(trainer, 40)
        assert trainer.method.name == "warmup"


def test_the_worst_case_is_an_exact_pipeline():
    """AuxNets that cannot learn at all: training is then plain training, and ends where it does."""
    nets = linear_auxnets(2, dtype=torch.float32)
    for net in nets:
        net.requires_grad_(False)
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "multiplier", auxnets=nets, make=sgd, micro=2)
    losses = [trainer.step(*batch)["loss"] for _ in range(40) for batch in data(2)]
    assert trainer.at.exact == 70 and losses[-1] < 0.5 * losses[0]
