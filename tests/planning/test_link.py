"""The planner's link: as given, measured, and what a slow one does to the cuts."""

from __future__ import annotations

import pytest
import torch

import lpcompile
from lpcompile.cli.main import main
from lpcompile.errors import UsageError
from lpcompile.passes.partition.evaluate import Link
from lpcompile.planning import link as planner_link
from lpcompile.planning.replan import cuts_over
from lpcompile.runtime.comm.link import LinkTimes
from lpcompile.training import build
from lpcompile.training.job import Job


def test_a_link_is_taken_as_it_is_or_measured_between_two_processes(monkeypatch):
    asked = []
    monkeypatch.setattr(planner_link.launch, "launch", lambda *given, **how: asked.append(how) or LinkTimes(12e3, 0.2))
    given = Link(1e3, 1.0)
    assert planner_link.link_of(given, "cpu") is given and planner_link.link_of(None, "cpu") is None and not asked
    assert planner_link.link_of("measure", "cpu") == Link(12e3, 0.2) and asked == [{"world": 2}]
    with pytest.raises(UsageError, match="link='guess' is neither a Link"):
        planner_link.link_of("guess", "cpu")


def test_stages_are_cut_where_messages_are_small_if_the_link_is_slow():
    model, x = lpcompile.models.resnet20(), torch.randn(8, 3, 32, 32)
    plan = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", method="stream", gate=False).plan
    crossing = plan.units[plan.cuts[0] - 1].output_bytes
    slow = Link(crossing / (3 * plan.step))  # the message takes three times as long as the step
    (cut,) = cuts_over(plan, slow)
    assert plan.units[cut - 1].output_bytes < crossing and cuts_over(plan, None) == cuts_over(plan, Link(1e12))


def test_a_command_names_a_link_by_its_rate_or_has_it_measured(monkeypatch):
    assert planner_link.planner_link(None) is None and planner_link.planner_link("measure") == "measure"
    assert planner_link.planner_link("8mbit") == Link(1000.0)
    with pytest.raises(UsageError, match="'fast' is no rate of a link"):
        Job("resnet20", link="fast").check()
    given = []
    monkeypatch.setattr(build, "parallelize", lambda *of, **how: given.append(how["link"]))
    for link in (None, "measure", "8mbit"):
        build.compile_job(Job("resnet20", link=link), lpcompile.models.resnet20(), torch.randn(8, 3, 32, 32), None)
    assert given == [None, "measure", Link(1000.0)]


@pytest.mark.parametrize("how", [["-K", "1"], ["--plan", "plan.json"]])
def test_a_link_is_refused_where_nothing_is_planned_for_it(how, capsys):
    assert main(["train", "resnet20", "--data", "digits", "--link", "measure", *how]) == 2
    assert "--link has no effect with" in capsys.readouterr().err
