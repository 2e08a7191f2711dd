"""Options of `fit` and `trainer`: signatures that tools can read, and wrong names refused before anything starts."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch.nn.functional as F

import lpcompile
from lpcompile.errors import UsageError, closest
from lpcompile.program import Program
from lpcompile.runtime.engine.settings import Settings
from lpcompile.runtime.launch.launch import TIMEOUT
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.trainable import Training
from tests.runtime.small import batches, compiled, norm_mlp, sgd


@pytest.mark.parametrize(("name", "records"), [("fit", (LoopOptions, Settings)), ("trainer", (Settings,))])
def test_signatures_show_every_option_with_its_default(name, records):
    shown = inspect.signature(getattr(Program, name)).parameters
    assert not any(p.kind is p.VAR_KEYWORD for p in shown.values())
    for record in records:
        for field in dataclasses.fields(record):
            assert shown[field.name].default == field.default, field.name
            assert field.name in inspect.getdoc(getattr(Program, name))
    assert name != "fit" or shown["timeout"].default == TIMEOUT
    assert list(Training.__annotations__) == [field.name for field in dataclasses.fields(Settings)]


@pytest.mark.parametrize(("given", "meant"), [("val", "test"), ("lr", "optimizer"), ("evalute_every", "evaluate_every"),
                                              ("max_grad_norm", "clip"), ("on_steps", "on_step")])  # fmt: skip
def test_a_wrong_option_is_refused_before_anything_starts(given, meant):
    data = batches(1)
    program = compiled(norm_mlp().double(), 2, data[0][0])
    with pytest.raises(UsageError, match=rf"fit has no option '{given}'; the closest is '{meant}', all are loss_fn"):
        program.fit(F.cross_entropy, data, optimizer=sgd, **{given: 1})


@pytest.mark.parametrize(("given", "says"), [
    ({"epochs": 1.5}, "epochs=1.5 trains nothing; give a whole number"), ({"replicas": 0}, "replicas=0 trains nothing"),
    ({"timeout": None}, "timeout=None is no time in which a rank could move"),
    ({"callbacks": print}, r"give callbacks=\[...\]"),
    ({"metrics": [F.cross_entropy], "test": []}, "are not functions by name"),
    ({"metrics": {"f1": max}}, "test=LOADER"),
    ({"best": "val accuracy", "test": [], "metrics": {"f1": max}}, "they have test f1, test accuracy, test loss, "),
    ({"best": "test f1"}, "they have train accuracy, train loss; without test=LOADER"),
])  # fmt: skip
def test_a_value_that_cannot_work_is_refused_before_anything_starts(given, says, tmp_path):
    data = batches(1)
    program = compiled(norm_mlp().double(), 2, data[0][0])
    with pytest.raises(UsageError, match=says):
        program.fit(F.cross_entropy, data, optimizer=sgd, save=str(tmp_path), **given)
    assert not any(tmp_path.iterdir())


def test_the_other_calls_refuse_wrong_options_too():
    x, _ = batches(1)[0]
    with pytest.raises(UsageError, match=r"parallelize has no option 'stages'; the closest is 'K'"):
        lpcompile.parallelize(norm_mlp().double(), stages=2, example_inputs=x)
    trainer = compiled(norm_mlp().double(), 1, x).trainer(F.cross_entropy, optimizer=sgd)
    with pytest.raises(UsageError, match=r"evaluate has no option 'metric'; the closest is 'metrics'"):
        trainer.evaluate([], metric=None)
    assert closest("Micro", ["micro", "K"]) == "micro"
