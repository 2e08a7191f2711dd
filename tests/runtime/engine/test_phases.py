"""Warm-up, decoupled, exact finish: which method runs when, and switching between methods."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

import lpcompile
from lpcompile.errors import UsageError
from lpcompile.runtime.methods.recipe import recipe_text
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
    options = {"total_steps": 50, "recouple": 0}
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="penalty", **options)
    assert recipe_text(trainer.recipe) == ("warmup@violation<0.05|5steps,penalty" if warm else "penalty")
    seen = [trainer.step(x, torch.arange(8) % 3)["method"] for _ in range(6)]
    assert seen == (["warmup"] * 5 + ["penalty"] if warm else ["penalty"] * 6)
    asked = program.trainer(F.cross_entropy, optimizer=sgd, method="penalty", warmup=0)
    assert asked.method.name == "penalty"


def test_the_last_steps_may_be_exact(caplog):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "multiplier", micro=2, total_steps=5, finish=2)
    with caplog.at_level("INFO", logger="lpcompile"):
        methods = [trainer.step(*batch)["method"] for batch in data(5)]
    assert methods == ["multiplier"] * 3 + ["1f1b"] * 2
    assert "step 3: the last 2 steps are exact" in caplog.text


def test_warm_up_and_finish_are_pipelines_also_where_a_batch_has_no_equal_parts():
    x, y = data(1, size=41)[0]
    trainer = trainer_of(norm_mlp(), 3, x, "penalty", warmup=2, finish=2, total_steps=6, warmup_violation=0, recouple=0)
    seen = [(trainer.step(x, y)["method"], trainer.micro) for _ in range(6)]
    assert [method for method, _ in seen] == ["warmup"] * 2 + ["penalty"] * 2 + ["zbh2"] * 2
    assert seen[0][1] > 1 and seen[-1][1] > 1


def test_a_recipe_runs_its_phases_in_turn_and_names_them(caplog):
    recipe = "1f1b[micro=4]@2steps,warmup@+1steps,penalty[micro=2]@0.6,stream@loss<100|0.9,bp"
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], recipe, total_steps=10, recouple=0)
    with caplog.at_level("INFO", logger="lpcompile"):
        found = [trainer.step(*batch) for batch in data(11)]
    methods = [one["method"] for one in found]
    assert methods == ["1f1b"] * 2 + ["warmup"] + ["penalty"] * 3 + ["stream"] * 3 + ["bp"] * 2
    assert found[3]["phase"] == "3 of 5: penalty[micro=2]@0.6" and trainer.micro == 1
    assert "step 6: stream@loss<100.0|0.9 after penalty" in caplog.text


def test_a_recipe_that_begins_in_the_middle_of_a_run_counts_its_own_steps():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "bp")
    run(trainer, data(6))
    trainer.switch("1f1b[micro=2]@+2steps,bp")
    assert [trainer.step(*batch)["method"] for batch in data(3)] == ["1f1b", "1f1b", "bp"]


def test_a_small_last_batch_is_not_cut_in_a_warm_up():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", warmup=4)
    assert trainer.micro == 2
    for x, y in data(4, last=3):
        trainer.step(x, y)
    assert trainer.micro == 1 and trainer.method.name == "warmup"
    trainer.step(*data()[0])
    assert trainer.method.name == "warmup" and trainer.micro == 2


def test_a_phase_ends_when_the_loss_is_small_enough():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "1f1b@loss<100,bp")
    assert [trainer.step(*batch)["method"] for batch in data(11)] == ["1f1b"] * 10 + ["bp"]


@pytest.mark.parametrize("given", [{"method": "penalty@0.5,bp"}, {"method": "penalty", "finish": 2}])
def test_a_share_needs_the_length_of_training(given):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], **given)
    with pytest.raises(UsageError, match=r"penalty@.* ends by the length of training, .*; pass total_steps=..."):
        trainer.step(*data()[0])
    trainer.fit(data(4))
    assert trainer.method.exact


@pytest.mark.parametrize("steps", [1, 3, 5, 7])
def test_a_run_goes_on_inside_any_phase_to_the_same_bits(steps, tmp_path):
    recipe = "1f1b[micro=2]@2steps,warmup@+2steps,multiplier[micro=2]@0.6,stream[micro=2]@0.9,1f1b"

    def make():
        options = {"total_steps": 10, "make": adam, "recouple": 1e-9}  # re-couples at the first vote
        return trainer_of(norm_mlp(dropout=0.2), 2, data()[0][0], recipe, **options)

    first, second = make(), make()
    run(first, data(steps))
    first.save(tmp_path)
    expected, metrics = run(first, data(12, seed=8))
    second.load(tmp_path)
    assert second.at.index == {1: 0, 3: 1, 5: 2, 7: 3}[steps]
    found, again = run(second, data(12, seed=8))
    assert_same(found, expected)
    assert [m["method"] for m in metrics] == [m["method"] for m in again]


def test_a_checkpoint_of_another_recipe_goes_on_with_the_one_asked_for(tmp_path):
    first = trainer_of(norm_mlp(), 2, data()[0][0], "penalty")
    run(first, data(2))
    first.save(tmp_path)
    second = trainer_of(norm_mlp(), 2, data()[0][0], "1f1b@3steps,bp")
    second.load(tmp_path)
    assert [second.step(*batch)["method"] for batch in data(2)] == ["1f1b", "bp"]


@pytest.mark.parametrize(("method", "usual"), [("zbh2", 4), ("zb", 4), ("stream", 3), ("multiplier", 3)])
@pytest.mark.parametrize("last", [2, 3, 5, 17])
def test_batch_norm_never_sees_a_single_sample_of_an_epochs_last_batch(method, usual, last):
    x, y = torch.randn(64, 6, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 3
    trainer = trainer_of(norm_mlp(), 3, x, method, micro=usual, recouple=0)
    seen = []
    for module in trainer.program.module.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.register_forward_pre_hook(lambda m, given: seen.append(len(given[0])))
    micros = []
    for size in (64, last, 64):
        trainer.step(x[:size], y[:size])
        micros.append(trainer.micro)
    trainer.flush()
    assert micros[0] == micros[2] == usual and min(seen) >= 2
    if trainer.method.exact:  # as many samples as usual, or the whole batch
        assert min(seen) >= min(last, 16)


@pytest.mark.parametrize("method", ["zbh2", "stream", "multiplier"])
def test_a_last_batch_smaller_than_the_micro_batches_is_cut_into_fewer(method):
    x, y = data(1, size=8)[0]
    trainer = trainer_of(norm_mlp(), 2, x, method, micro=4, recouple=0)
    for size in (8, 2, 3, 8):
        trainer.step(x[:size], y[:size])
    assert trainer.micro == 4
