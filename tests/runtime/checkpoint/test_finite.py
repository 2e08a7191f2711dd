"""No checkpoint holds values that are not finite, and a run does not end well with them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.errors import TrainingError
from lpcompile.runtime.launch.launch import launch
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from tests.runtime.small import batches, compiled, norm_mlp, sgd

DATA = batches(4, dtype=torch.float32)


class Masked(nn.Module):
    """With a buffer of -inf, as attention masks are."""

    def __init__(self):
        super().__init__()
        self.layers = norm_mlp()
        self.register_buffer("mask", torch.full((3,), -torch.inf))

    def forward(self, x):
        return self.layers(x).maximum(self.mask)


def trainer(model=None, optimizer=sgd, **options):
    program = compiled(model or norm_mlp(), 2, DATA[0][0])
    return program.trainer(F.cross_entropy, optimizer=optimizer, **{"method": "bp", **options})


def poison(t, value=torch.nan):
    """A finite loss with a gradient that is not."""
    parameter = t.workers[-1].stage.module.get_parameter("6.bias")
    parameter.register_hook(lambda g: torch.full_like(g, value))


@pytest.mark.parametrize("options", [{"clip": 1.0}, {"check_every": 1}])
def test_a_gradient_that_is_not_finite_ends_training_before_the_weights_have_it(options):
    t = trainer(**options)
    t.step(*DATA[0])
    poison(t)
    with pytest.raises(TrainingError, match=r"step 1, rank 1: the gradient of 6.bias is not finite; lower the"):
        t.step(*DATA[1])
    assert all(p.isfinite().all() for p in t.workers[-1].stage.module.parameters())


def test_a_batch_with_values_that_are_not_finite_is_named():
    t, (x, y) = trainer(), DATA[0]
    with pytest.raises(
        TrainingError, match=r"step 0, rank 1: the loss is nan: 6 values of the batch are not finite; look"
    ):
        t.step(torch.cat([x[1:], torch.full_like(x[:1], torch.nan)]), y)


def test_a_weight_that_made_the_loss_undefined_is_named():
    t = trainer()
    with torch.no_grad():
        t.program.module.get_parameter("6.bias")[0] = torch.nan
    with pytest.raises(
        TrainingError, match=r"rank 1: the loss is nan: \d+ of \d+ values of 6.\w+ are not finite; lower"
    ):
        t.step(*DATA[0])


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    t = trainer()
    t.step(*DATA[0])
    t.save(tmp_path)
    with torch.no_grad():
        t.program.module.get_parameter("2.linear.weight")[0, 0] = torch.inf
    t.steps += 1
    message = (
        r"step 2, rank 0: 1 of 36 values of 2.linear.weight are not finite; nothing was saved, "
        r"and the newest checkpoint is .*step-00000001"
    )
    with pytest.raises(TrainingError, match=message):
        t.save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("slot", ["exp_avg_sq", ""])
def test_in_one_process_the_rank_that_has_the_tensor_is_named(tmp_path, slot):
    t = trainer(optimizer=lambda parameters: torch.optim.Adam(parameters, 0.01))
    t.step(*DATA[0])
    weight = t.workers[1].stage.module.get_parameter("6.weight")
    with torch.no_grad():
        (t.workers[1].updater.optimizer.state[weight][slot] if slot else weight).view(-1)[0] = torch.inf
    with pytest.raises(TrainingError, match=r"step 1, rank 1: 1 of 18 values of (optimizer/)?6.weight"):
        t.save(tmp_path)


def test_statistics_that_are_not_finite_end_a_run_badly():
    t = trainer()
    with torch.no_grad():
        t.program.module.get_buffer("5.norm.running_var").fill_(torch.inf)
    with pytest.raises(TrainingError, match=r"5.norm.running_var are not finite; training ended with them"):
        run(t, DATA, 1, watch=LoopOptions(evaluate_every=0, train_batches=0))


def test_a_loop_that_is_not_saved_does_not_end_well_with_them_either():
    t = trainer()
    t.fit(DATA[:2])
    poison(t)
    with pytest.raises(TrainingError, match=r"step 3, rank 1: 3 of 3 values of 6.bias are not finite; training ended"):
        t.fit(DATA[2:3])


@pytest.mark.parametrize("name", ["6.weight", "3.norm.running_mean"])
def test_weights_and_statistics_that_are_undefined_before_training_are_refused(name):
    model = norm_mlp()
    model.state_dict()[name].view(-1)[0] = torch.nan
    with pytest.raises(
        TrainingError, match=rf"step 0, .*values of {name} are not finite; they were so before .*; load"
    ):
        trainer(model)


def test_finite_weights_that_give_no_finite_loss_are_not_passed_over_in_silence(caplog):
    t = trainer(optimizer=lambda parameters: torch.optim.SGD(parameters, 1e30))
    found = run(t, DATA[:1], 1, watch=LoopOptions(evaluate_every=1, train_batches=1))
    assert "after 1 steps the model's train loss is nan, with weights that are finite; lower" in found.warning
    assert found.warning in caplog.text


def test_a_mask_of_infinities_is_the_models_own_business(tmp_path):
    t = trainer(Masked())
    t.step(*DATA[0])
    assert t.save(tmp_path).is_dir()


def on_one_rank(folder):
    """Rank 1's weights are not finite; both ranks hear of it."""
    t = trainer()
    t.step(*DATA[0])
    if t.rank == 1:
        with torch.no_grad():
            t.workers[0].stage.module.get_parameter("6.bias")[0] = torch.nan
    try:
        t.save(folder)
    except TrainingError as error:
        said = t.gather({f"said {t.rank}": str(error)})
        return said["said 0"], said["said 1"]
    return None


def test_all_ranks_say_which_one_it_is(tmp_path):
    first, second = launch(on_one_rank, (str(tmp_path),), world=2)
    assert first == second and first.startswith("step 1, rank 1: 1 of 3 values of 6.bias are not finite")
    assert not list(tmp_path.iterdir())
