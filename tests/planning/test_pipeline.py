"""The compile pipeline as a list: names, contracts, order, and printing after a pass."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import UsageError
from lpcompile.planning import print_after
from lpcompile.planning.pipeline import FOLLOW_PASSES, PASSES, Pass, run_passes, warn_user

CALL = {"model", "args", "kwargs", "options"}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])


@pytest.mark.parametrize("passes", [PASSES, FOLLOW_PASSES])
def test_every_pass_needs_only_what_a_pass_before_it_ensures(passes):
    there = set(CALL)
    for each in passes:
        assert set(each.needs) <= there, each.name
        there |= set(each.ensures)
    assert {"captured", "arrangement", "plan"} <= there


def test_names_are_unique_and_every_pass_says_what_it_does():
    names = [p.name for p in PASSES]
    assert len(set(names)) == len(names)
    assert all(p.summary.endswith((".", ":")) or p.summary for p in (*PASSES, *FOLLOW_PASSES))


def test_a_pass_gets_the_artefacts_that_its_parameters_name():
    double = Pass("double", lambda a: (2 * a,), ("b",))
    add = Pass("add", lambda a, b: (a + b, "sum"), ("c", "text"))
    assert run_passes((double, add), {"a": 3, "unused": None}) == {
        "a": 3,
        "unused": None,
        "b": 6,
        "c": 9,
        "text": "sum",
    }


def test_a_pass_that_ensures_more_than_it_returns_is_an_error():
    with pytest.raises(ValueError):
        run_passes((Pass("short", lambda: (1,), ("a", "b")),), {})


def test_artefacts_are_printed_after_the_passes_that_the_environment_names(monkeypatch, capsys):
    monkeypatch.setenv(print_after.VARIABLE, "cuts, plan")
    lpcompile.parallelize(model(), 2, example_inputs=torch.randn(4, 6), cost="flops", method="penalty")
    said = capsys.readouterr()
    assert said.out == ""
    assert [line for line in said.err.splitlines() if line.startswith("==")] == ["== after cuts ==", "== after plan =="]
    assert "units: 7" in said.err and "K = 2 stages for method 'penalty'" in said.err


def test_every_artefact_has_a_text(monkeypatch, capsys):
    monkeypatch.setenv(print_after.VARIABLE, "all")
    lpcompile.parallelize(model(), 2, example_inputs=torch.randn(4, 6), cost="flops", method="multiplier")
    said = capsys.readouterr().err
    for name in (name for p in PASSES for name in p.ensures):
        assert f"\n{name}: " in f"\n{said}", name
    assert "-- stage 1" in said and "-- AuxNet or head of boundary 1" in said and "def forward" in said


def test_a_name_that_is_no_pass_is_refused_with_the_closest():
    with pytest.raises(UsageError, match=r"there is no pass 'prfile'; the closest is 'profile', all are capture, cuts"):
        print_after.check(["prfile"], [p.name for p in PASSES])
    print_after.check(["all", "plan"], [p.name for p in PASSES])


def test_an_environment_that_names_no_pass_is_refused(monkeypatch):
    monkeypatch.setenv(print_after.VARIABLE, "prfile")
    with pytest.raises(UsageError, match="there is no pass 'prfile'"):
        lpcompile.parallelize(model(), 2, example_inputs=torch.randn(4, 6), cost="flops")


def test_a_warning_points_to_the_line_of_the_user():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warn_user("look here")
    assert seen[0].filename == __file__


def test_following_a_plan_measures_and_searches_nothing(monkeypatch):
    x = torch.randn(4, 6)
    plan = lpcompile.parallelize(model(), 3, example_inputs=x, cost="flops").plan
    monkeypatch.setattr("lpcompile.planning.pipeline.profile", None)
    monkeypatch.setattr("lpcompile.planning.arrange.plan_program", None)
    again = lpcompile.parallelize(model(), example_inputs=x, plan=plan)
    assert again.plan is plan and len(again.stages) == 3


def test_a_wrong_name_lists_every_pass_once(monkeypatch):
    monkeypatch.setenv(print_after.VARIABLE, "nonsense")
    with pytest.raises(UsageError) as error:
        run_passes(PASSES, {})
    listed = str(error.value).rpartition("all are ")[2].split(", ")
    assert "follow" in listed and len(listed) == len(set(listed))
