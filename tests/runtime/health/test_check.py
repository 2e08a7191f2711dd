"""The model's own loss stands beside the loss through λ, and a run that is not well says so, whatever the method."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from lpcompile.runtime.health import check
from lpcompile.runtime.health.advice import advice
from lpcompile.runtime.health.verdict import Chance, chance_of
from lpcompile.runtime.loop.loop import run as run_loop
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.runtime.methods import METHODS, get_method
from tests.runtime.engine.training import adam, data, trainer_of
from tests.runtime.small import norm_mlp, sgd


def still(parameters):
    return torch.optim.SGD(parameters, 0.0)


def batches_of(trainer, count, seed=3):
    for x, y in data(count, seed=seed):
        yield trainer.step(x, y, torch.arange(len(y)))


@pytest.mark.parametrize("method", ["penalty", "multiplier", "lagrangian"])
def test_the_models_own_loss_is_that_of_the_serial_model(method):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], method, make=still, check_every=2, micro=1)
    before = {name: t.clone() for name, t in trainer.program.module.state_dict().items() if "running" in name}
    found = list(batches_of(trainer, 4))
    assert ["model loss" in one for one in found] == [False, True, False, True]
    model, (x, y) = norm_mlp().train(), data(4)[3]
    assert found[3]["model loss"] == pytest.approx(F.cross_entropy(model(x), y).item(), rel=1e-5)
    assert found[3]["loss"] != pytest.approx(found[3]["model loss"], rel=1e-3)
    assert before.keys() <= trainer.program.module.state_dict().keys()


def test_a_check_changes_no_bit_of_training():
    def trained(every):
        torch.manual_seed(0)
        trainer = trainer_of(norm_mlp(dropout=0.2), 2, data()[0][0], "multiplier", micro=2, check_every=every)
        list(batches_of(trainer, 6))
        return trainer.state_dict()

    checked, plain = trained(1), trained(1000)
    assert all(torch.equal(checked[name], plain[name]) for name in plain)


def test_a_stage_without_a_gradient_is_named(caplog):
    trainer = trainer_of(norm_mlp(), 3, data()[0][0], "penalty", beta=1e-7, check_every=5, recouple=0)
    list(batches_of(trainer, 5))
    assert "boundary 1: stage 0 gets" in caplog.text and "it hardly learns; try a larger β" in caplog.text
    assert caplog.text.count("boundary 1: stage 0") == 1


def test_a_violation_that_stays_is_named(caplog):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "multiplier", make=still, check_every=50)
    for _ in range(150):
        trainer.step(*data()[0])
    assert "the AuxNet of boundary 1 does not follow X: the violation is" in caplog.text
    assert "multiplier'" not in caplog.text.split("which go on")[1]


def test_a_violation_that_stays_in_a_warm_up_is_named_within_100_steps(caplog):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", make=sgd, aux_optimizer=still, warmup=300)
    for _ in range(100):
        metrics = trainer.step(*data()[0])
    assert metrics["method"] == "warmup" and metrics["violation 1"] > 0.9
    assert "step 100: the AuxNet of boundary 1 does not follow X" in caplog.text
    assert "after 100 steps of warm-up; try larger AuxNets" in caplog.text


def test_stored_lambda_far_from_x_is_named(caplog):
    x, y = data()[0]
    trainer = trainer_of(norm_mlp(), 2, x, "penalty-stored", make=still, check_every=5)
    for step in range(5):
        trainer.step(x, y, torch.arange(len(y)))
        if step == 0:
            kept = trainer.workers[0].stores or trainer.workers[1].stores
            kept["lam", 1].put(torch.arange(len(y)), [-t for t in kept["lam", 1].take(torch.arange(len(y)))])
    assert "step 5: the violation of boundary 1 is" in caplog.text and "try method='auto'" in caplog.text


def test_a_loss_that_does_not_fall_in_exact_steps_before_decoupling_is_named_within_100_steps(caplog):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", make=still, aux_optimizer=adam, warmup=300,
                         warmup_violation=0)  # fmt: skip
    for _ in range(100):
        metrics = trainer.step(*data()[0])
    assert metrics["method"] == "warmup"
    assert "step 100: the loss is" in caplog.text and "in exact steps; try" in caplog.text


def test_a_model_at_chance_is_named_also_where_the_loss_through_lambda_falls_a_little(caplog):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty")
    trainer.steps = check.AFTER
    check.judge(trainer, {"loss": 1.0, "model loss": 1.09, "first loss": 1.1})
    assert "step 100: the loss of the model is 1.09 and was 1.1 at first" in caplog.text


def test_the_log_has_the_models_loss_wherever_its_lines_are(tmp_path):
    file = tmp_path / "log.jsonl"
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", check_every=5, warmup=0, recouple=0)
    run_loop(trainer, data(14), 1, watch=LoopOptions(log=str(file), log_every=7))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert ["model loss" in line for line in lines[:2]] == [True, True]


def test_a_model_that_does_not_learn_while_lambda_does_is_coupled_again(caplog):
    """A high learning rate of the last stage alone: its loss through λ falls, the model's does not."""

    def last_only(parameters):
        own = {id(p) for p in trainer_stages[-1].parameters()}
        return torch.optim.SGD(parameters, 0.3 if any(id(p) in own for p in parameters) else 0.0)

    model = norm_mlp()
    trainer_stages = [model[-1]]
    trainer = trainer_of(model, 2, data()[0][0], "penalty", make=last_only, aux_optimizer=still, check_every=20,
                         recouple=1e9)  # fmt: skip
    methods = [trainer.step(*data()[0])["method"] for _ in range(100)]
    assert "while the loss through λ is" in caplog.text and "warmup" in methods


@pytest.mark.parametrize("method", ["bp", "1f1b", "stream", "penalty", "dgl"])
def test_no_method_ends_at_chance_without_a_word(method, caplog):
    loader = [(x, y, torch.arange(8)) for x, y in data(8)]
    trainer = trainer_of(norm_mlp(), 2, loader[0][0], method, make=still, recouple=0)
    found = run_loop(trainer, loader, 3)
    assert "after 24 steps the model is at chance" in caplog.text and found["warning"] in caplog.text
    again = trainer_of(norm_mlp(), 2, loader[0][0], method, make=still, recouple=0)
    assert "at chance" in again.fit(loader, 3)["warning"]


@pytest.mark.parametrize("method", ["zbh2", "stream"])
def test_a_loop_of_ones_own_hears_that_the_loss_does_not_fall(method, caplog):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], method, make=still)
    for _ in range(150):
        trainer.step(*data()[0])
    assert caplog.text.count("step 100: the loss is") == 1 and caplog.text.count("the loss is") == 1


@pytest.mark.parametrize("method", ["zbh2", "penalty"])
def test_a_run_that_diverges_at_once_and_comes_back_to_chance_has_not_learnt(method, caplog):
    """The first losses are 1.1, then many times that; later the model is at chance, below their mean."""

    def jumps(parameters):
        optimizer = torch.optim.SGD(parameters, 0.0)
        starts = [p.detach().clone() for p in parameters]

        def jump(*_):
            at[0] += 1 / trainer.plan.K
            with torch.no_grad():
                for p, start in zip(parameters, starts, strict=True):
                    p.copy_(start * (30.0 if at[0] < 10 else 1.0))

        optimizer.register_step_post_hook(jump)
        return optimizer

    at = [0.0]
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], method, make=jumps, aux_optimizer=still, recouple=0, clip=0)
    losses = [trainer.step(*data()[0])["loss"] for _ in range(100)]
    assert max(losses[:10]) > 2 * losses[0] and losses[-1] == pytest.approx(losses[0], rel=0.05)
    assert "step 100: the loss" in caplog.text and "at first" in caplog.text


def test_a_model_that_learns_gets_no_warning(caplog):
    loader = [(x, (x[:, 0] > 0).long()) for x, _ in data(8)]
    trainer = trainer_of(norm_mlp(), 2, loader[0][0], "1f1b", make=sgd)
    assert "warning" not in run_loop(trainer, loader, 20) and trainer.steps > 100
    assert "chance" not in caplog.text and "the loss is" not in caplog.text


def test_chance_is_the_most_frequent_class():
    assert chance_of({0: 3, 1: 1}) == Chance(0.75, pytest.approx(0.5623, rel=1e-3))
    assert chance_of({}) is None


@pytest.mark.parametrize("trouble", ["constant", "far", "starved", "chance"])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_advice_names_another_method_than_the_one_in_use(method, trouble):
    text = advice(get_method(method), trouble)
    assert f"method='{method}'" not in text, text
