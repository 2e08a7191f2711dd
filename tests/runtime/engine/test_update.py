"""Optimizers of a rank: loss scale, clipping, and which of them step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lpcompile.errors import InputError, UsageError
from lpcompile.runtime.comm.handshake import own_device
from lpcompile.runtime.engine.update import GROW_AFTER, Updater
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


def test_an_optimizer_of_parameters_that_it_was_not_given_is_refused_and_none_too():
    model = norm_mlp()
    with pytest.raises(
        UsageError, match=r"optimizer gave a SGD of other parameters than those of the stage, .* let it"
    ):
        trainer_of(model, 2, data()[0][0], make=lambda _: torch.optim.SGD(model.parameters(), 0.1))
    with pytest.raises(UsageError, match=r"optimizer is None: give a function"):
        trainer_of(norm_mlp(), 2, data()[0][0], make=None)


def test_an_optimizer_that_evaluates_the_loss_itself_is_refused_before_training():
    with pytest.raises(UsageError, match=r"optimizer gave a LBFGS, whose step evaluates the loss again by a closure"):
        trainer_of(norm_mlp(), 2, data()[0][0], "stream", make=torch.optim.LBFGS)


def test_a_loss_that_is_not_one_number_is_refused_with_what_it_gave():
    for loss, what in ((lambda o, t: None, "None"), (lambda o, t: o, r"a tensor of shape \[8, \d+\]")):
        trainer = trainer_of(norm_mlp(), 2, data()[0][0], loss=loss, method="bp")
        with pytest.raises(InputError, match=rf"<lambda> gave {what}; let it return a tensor with one number"):
            trainer.step(*data()[0])


def test_a_device_that_torch_does_not_have_is_named():
    for device in ("gpu", "mps"):
        with pytest.raises(
            UsageError, match=rf"device='{device}' cannot be used here \([^\n]{{9,200}}\); use device='cpu'"
        ):
            own_device(torch.device("cpu"), device)


def weights(*values):
    return [nn.Parameter(torch.tensor([float(v)])) for v in values]


def updater(scale=1.0, lr=1.0):
    """A stage with one weight, an AuxNet with another."""
    (stage,), (aux,) = weights(1), weights(2)
    found = Updater([stage], torch.optim.SGD([stage], lr), scale)
    found.add("auxnet 1", [aux], lambda ps: torch.optim.SGD(ps, lr))
    return found, stage, aux


def give(found, *pairs):
    """Gradients, and the optimizers that are due by them."""
    for parameter, gradient, name in pairs:
        parameter.grad = torch.tensor([float(gradient)])
        found.due.add(name)


def test_only_optimizers_that_are_due_step():
    found, stage, aux = updater()
    give(found, (aux, 0.5, "auxnet 1"))
    stage.grad = torch.ones(1)  # gathered, not due
    assert found.apply(None)
    assert (stage.item(), aux.item()) == (1.0, 1.5)
    assert stage.grad is not None and aux.grad is None and not found.due
    give(found, (stage, 1.0, "stage"))
    aux.grad = torch.ones(1)
    found.apply(None)
    assert (stage.item(), aux.item()) == (0.0, 1.5)


def test_stage_and_auxnets_are_clipped_each_by_itself():
    found, stage, aux = updater()
    found.clip = 1.0
    give(found, (stage, 4.0, "stage"), (aux, 0.5, "auxnet 1"))
    found.apply(None)
    assert stage.item() == pytest.approx(0.0, abs=1e-5) and aux.item() == 1.5


def test_a_stage_is_clipped_by_the_norm_over_all_ranks_where_it_is_known():
    found, stage, _ = updater()
    found.clip = 1.0
    give(found, (stage, 3.0, "stage"))
    found.apply([torch.tensor(3.0), torch.tensor(4.0)])
    assert stage.item() == pytest.approx(1 - 3 / 5, abs=1e-5)


def test_an_overflow_on_any_rank_skips_the_step_and_halves_the_scale():
    found, stage, aux = updater(scale=8.0)
    give(found, (stage, 8.0, "stage"), (aux, 8.0, "auxnet 1"))
    assert not found.apply([torch.tensor(1.0), torch.tensor(float("inf"))])
    assert (stage.item(), aux.item(), found.scale) == (1.0, 2.0, 4.0)
    assert stage.grad is None and aux.grad is None and not found.due


def test_scaled_gradients_are_unscaled_and_the_scale_grows_after_many_clean_steps():
    found, stage, aux = updater(scale=8.0)
    found.clean = GROW_AFTER - 1
    give(found, (stage, 4.0, "stage"), (aux, 2.0, "auxnet 1"))
    assert found.apply([torch.tensor(4.0)])
    assert (stage.item(), aux.item()) == (0.5, 1.75)
    assert (found.scale, found.clean) == (16.0, 0)


def test_a_tied_parameter_counts_in_one_ranks_norm_only():
    first, second = weights(0, 0)
    first.grad, second.grad = torch.tensor([3.0]), torch.tensor([4.0])
    found = Updater([first, second], None)
    assert found.norm(torch.device("cpu")) == 5.0
    found.uncounted = {id(first)}
    assert found.norm(torch.device("cpu")) == 4.0


def test_an_auxnet_on_its_stages_weights_has_no_optimizer():
    found, _, _ = updater()
    found.add("auxnet 2", [], lambda ps: pytest.fail("an optimizer without parameters"))
    assert list(found.optimizers()) == ["stage", "auxnet 1"]


def test_state_goes_to_another_updater():
    found, _, _ = updater(scale=8.0)
    found.clean = 7
    other, _, _ = updater(scale=4.0, lr=0.5)
    other.load(found.state())
    assert (other.scale, other.clean) == (8.0, 7)
    assert other.optimizer.param_groups[0]["lr"] == 1.0


def test_fused_sgd_takes_a_weight_whose_first_gradient_comes_late():
    first, late = weights(1, 1)
    found = Updater([first, late], torch.optim.SGD([first, late], 0.5, momentum=0.9, fused=True))
    give(found, (first, 1.0, "stage"))
    found.apply(None)
    give(found, (first, 1.0, "stage"), (late, 1.0, "stage"))
    found.apply(None)
    assert late.item() == 0.5 and first.item() == pytest.approx(1 - 0.5 - 0.5 * 1.9)


def test_the_norm_of_a_stage_without_gradients_has_the_dtype_that_the_others_send():
    """Else ranks would gather tensors of different sizes, at which gloo ends the process."""
    updater = trainer_of(norm_mlp(), 2, data()[0][0]).workers[0].updater
    assert updater.norm(torch.device("cpu"), torch.float64).dtype == torch.float64
    for p in updater.parameters:
        p.grad = torch.ones_like(p)
    assert updater.norm(torch.device("cpu"), torch.float64).dtype == torch.float32
