"""What cannot be trained on is said in one line before processes are started, and never as a raw KeyError."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import lpcompile
from lpcompile.core.plan import Plan
from lpcompile.errors import InputError, PlanError, TrainingError, UsageError
from tests.runtime.small import batches, compiled, norm_mlp, sgd

X, Y = batches(1, dtype=torch.float32)[0]


@pytest.fixture(scope="module")
def program():
    return compiled(norm_mlp(), 2, X)


def empty():
    return DataLoader(TensorDataset(X, Y), 16, drop_last=True)


def test_an_empty_loader(program):
    with pytest.raises(InputError, match="the loader gives no batch"):
        program.fit(F.cross_entropy, empty(), optimizer=sgd)
    with pytest.raises(InputError, match="the loader gives no batch"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp").fit(empty())
    with pytest.raises(InputError, match="the loader gives no batch"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp").fit(iter([]))


class Stream(IterableDataset):
    """Samples of which nobody knows the number: its DataLoader has a len() that raises TypeError."""

    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def test_a_data_set_without_a_length_is_refused_where_it_is_needed_and_else_trained_on(program):
    with pytest.raises(UsageError, match=r"a loader without a length cannot be resumed: give a data set with len"):
        program.fit(F.cross_entropy, DataLoader(Stream(), 4), optimizer=sgd)
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="bp")
    trainer.fit(DataLoader(Stream(), 4), 2)
    assert trainer.steps == 4


def test_a_batch_without_samples(program):
    with pytest.raises(InputError, match="the batch of step 0 has no samples"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp").step(X[:0], Y[:0])


def test_nothing_to_evaluate(program):
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="bp")
    with pytest.raises(InputError, match="the loader to evaluate gives no batch"):
        trainer.evaluate(empty())
    with pytest.raises(InputError, match="batch 2 to evaluate has no samples"):
        trainer.evaluate([(X, Y), (X[:0], Y[:0])])


@pytest.mark.parametrize(("given", "said"), [
    ({"loader": None}, "the loader is None, and batches are taken from a DataLoader, a list or the like"),
    ({"epochs": 0}, "epochs=0 trains nothing; give a whole number, 1 or more"),
    ({"timeout": 0}, "timeout=0 is no time in which a rank could move; give seconds"),
])  # fmt: skip
def test_arguments_of_fit_that_cannot_be(program, given, said):
    with pytest.raises((InputError, UsageError), match=said):
        program.fit(F.cross_entropy, **{"loader": [(X, Y)], "optimizer": sgd, **given})


@pytest.mark.parametrize("name", ["optimizer", "scheduler"])
def test_a_function_that_forgets_to_return_what_it_makes(program, name):
    given = {"optimizer": sgd, name: lambda _: None}
    with pytest.raises(UsageError, match=rf"{name} gave None, which has no step\(\): let the function return what"):
        program.trainer(F.cross_entropy, **given)


def test_a_scheduler_that_waits_for_figures(program):
    with pytest.raises(UsageError, match="scheduler gave ReduceLROnPlateau, which waits for figures of evaluations"):
        program.trainer(F.cross_entropy, optimizer=sgd, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)


def test_a_metric_without_a_name(program):
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="bp")
    with pytest.raises(InputError, match=r'it gave a tensor of shape \[\]; name it.*metrics=\{"f1": f1\}'):
        trainer.evaluate([(X, Y)], metrics=F.cross_entropy)


def test_an_optimizer_instead_of_a_factory(program):
    made = torch.optim.SGD(program.module.parameters(), 0.1)
    said = r"optimizer is a SGD object, .* give a function that makes it, optimizer=lambda parameters: SGD\(parameters"
    with pytest.raises(UsageError, match=said):
        program.trainer(F.cross_entropy, optimizer=made)
    with pytest.raises(UsageError, match=said):
        program.fit(F.cross_entropy, [(X, Y)], optimizer=made)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(program):
    with pytest.raises(TrainingError, match="device cuda: torch sees no GPU on this machine; use device='cpu'"):
        program.trainer(F.cross_entropy, optimizer=sgd, device="cuda")


@pytest.mark.parametrize(("change", "said"), [
    (lambda plan: {"tied": [["0.linear.weight", [0, 5]]]}, r"0.linear.weight is tied between ranks \[0, 5\] of 2"),
    (lambda plan: {"boundaries": [{**plan["boundaries"][0], "aux": {**plan["boundaries"][0]["aux"], "rank": -1}}]},
     r"boundaries\[0\] has an AuxNet on rank -1 of 2"),
])  # fmt: skip
def test_a_plan_with_ranks_that_there_are_not(change, said):
    made = lpcompile.parallelize(norm_mlp(), 2, example_inputs=X, cost="flops", method="penalty", gate=False).plan
    data = made.to_json()
    assert dataclasses.asdict(Plan.from_json(data)) == dataclasses.asdict(made)
    with pytest.raises(PlanError, match=said):
        Plan.from_json({**data, **change(data)})
