"""A learning rate's schedule goes on only in a run of the same length."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, StepLR

import lpcompile
from lpcompile.errors import UsageError


def trainer(length, kind, K=2):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    program = lpcompile.parallelize(model, K, example_inputs=torch.randn(8, 8), cost="flops", method="1f1b")
    make = {
        "cosine": lambda o: CosineAnnealingLR(o, length),
        "one cycle": lambda o: OneCycleLR(o, 0.1, length),
        "step": lambda o: StepLR(o, 3),
    }[kind]
    sgd = lambda parameters: torch.optim.SGD(parameters, 0.1)  # noqa: E731
    return program.trainer(torch.nn.functional.mse_loss, optimizer=sgd, scheduler=make, total_steps=length)


@pytest.mark.parametrize("K", [2, 3])  # the saved plan, and another one
@pytest.mark.parametrize("kind", ["cosine", "one cycle"])
def test_a_schedule_of_another_length_is_refused(kind, K, tmp_path):
    first = trainer(10, kind)
    first.step(torch.randn(8, 8), torch.randn(8, 8))
    first.save(tmp_path)
    with pytest.raises(UsageError, match="=10, and that of this run .*=20: resume with as many epochs"):
        trainer(20, kind, K).load(tmp_path)
    trainer(10, kind, K).load(tmp_path)


def test_a_schedule_without_an_end_goes_on_in_a_longer_run(tmp_path):
    first = trainer(10, "step")
    first.step(torch.randn(8, 8), torch.randn(8, 8))
    first.save(tmp_path)
    longer = trainer(20, "step")
    longer.load(tmp_path)
    assert longer.steps == 1
