"""Options of `parallelize`: what has no meaning is refused, and a plan replaces what it decides."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import UsageError
from lpcompile.planning.auxiliary.auxnets import AuxOptions
from lpcompile.planning.options import Options
from lpcompile.runtime.methods import DEFAULT, METHODS, get_method


def options(**given) -> Options:
    return Options(**{"K": 2, "cost": "flops", "method": "penalty", "aux": AuxOptions(), **given})


@pytest.mark.parametrize(("given", "message"), [
    ({"K": 0}, "K=0 is neither a number of stages"),
    ({"K": True}, "K=True is neither"),
    ({"K": "three"}, "nor 'auto'"),
    ({"cost": "guess"}, "cost='guess' is not one of"),
    ({"max_width": 0}, "max_width=0 is neither"),
    ({"threads": 0}, "threads=0 is not a number of threads"),
    ({"aux": AuxOptions(budget=2.0)}, "aux_budget=2.0 is no share"),
])  # fmt: skip
def test_what_has_no_meaning_is_refused(given, message):
    with pytest.raises(UsageError, match=message):
        options(**given).checked()


def test_an_unknown_method_is_refused_before_anything_is_captured():
    with pytest.raises(UsageError, match="there is no method 'penalti'; the closest is 'penalty'"):
        lpcompile.parallelize(nn.Linear(2, 2), 2, method="penalti")


def test_a_plan_decides_what_it_was_made_for():
    model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(4)])
    plan = lpcompile.parallelize(model, 2, example_inputs=torch.randn(4, 6), cost="flops", method="penalty").plan
    followed = options(K="auto", cost="measured", method="bp").following(plan)
    assert (followed.K, followed.cost, followed.method, followed.plan) == (2, "flops", "penalty", plan)
    assert followed.aux is not None and followed.aux.budget == plan.aux_budget


def test_the_default_method_is_one_constant():
    import inspect

    from lpcompile.training.job import Job

    assert inspect.signature(lpcompile.parallelize).parameters["method"].default == DEFAULT == Job("resnet20").method
    assert get_method(DEFAULT).exact and get_method(DEFAULT).name in METHODS
