"""Optimizers and schedules by name, and what a job makes of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lpcompile.errors import UsageError
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.training.job import Job
from lpcompile.training.optimizers import optimizer_factory, scheduler_factory


def rates(name, total):
    optimizer = optimizer_factory("sgd", 0.4)([nn.Parameter(torch.zeros(2))])
    scheduler = scheduler_factory(name, 0.4, total)(optimizer)
    found = []
    for _ in range(total):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_one_cycle_rises_to_the_largest_rate_and_falls_again():
    found = rates("one-cycle", 20)
    assert max(found) == pytest.approx(0.4, rel=0.05) and found[0] < 0.05 and found[-1] < 0.05
    assert found.index(max(found)) not in (0, 19)


def test_cosine_falls_from_the_largest_rate():
    found = rates("cosine", 20)
    assert found[0] == 0.4 and found == sorted(found, reverse=True) and found[-1] < 0.01


def test_steps_are_a_tenth_after_each_third():
    assert rates("steps", 9) == pytest.approx([0.4] * 3 + [0.04] * 3 + [0.004] * 3)


def test_a_constant_rate_has_no_scheduler():
    assert scheduler_factory("constant", 0.1, 20) is None


def test_optimizers_are_fused_and_have_the_jobs_options():
    weight = [nn.Parameter(torch.zeros(2))]
    job = Job("resnet20", lr=0.3, momentum=0.5, weight_decay=0.25)
    group = job.optimizer_factory()(weight).param_groups[0]
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.3, 0.5, 0.25)
    assert group["fused"] and group["nesterov"]
    assert isinstance(Job("resnet20", optimizer="adamw").optimizer_factory()(weight), torch.optim.AdamW)


@pytest.mark.parametrize(("method", "options", "stores"), [
    ("penalty", {}, False), ("penalty-stored", {}, True), ("lagrangian", {}, True),
    ("lagrangian", {"kappa": "auxnet"}, False),
])  # fmt: skip
def test_a_job_knows_whether_its_method_stores_samples(method, options, stores):
    assert Job("resnet20", method=method, options=options).stores_samples is stores


@pytest.mark.parametrize(("given", "says"), [
    ({"K": 0}, "all are numbers of 1 or more"), ({"data": "/nowhere"}, "there is no such folder"),
    ({"optimizer": "adam"}, "--optimizer adam is not one of sgd, adamw"),
    ({"schedule": "linear"}, "--schedule linear is not one of"), ({"watch": LoopOptions(resume=True)}, "--save DIR"),
    ({"batch": 5, "replicas": 2}, "cannot be shared by 2 replicas"),
])  # fmt: skip
def test_a_job_is_refused_before_anything_starts(given, says):
    with pytest.raises(UsageError, match=says):
        Job("resnet20", **given).check()
