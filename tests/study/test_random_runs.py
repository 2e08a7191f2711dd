"""A draw is the same everywhere, and its verdict finds what is wrong."""

from __future__ import annotations

from lpcompile.study.random_runs import draw, verdict
from tests.study.small_study import record


def drawn(seed, count=8):
    return list(draw(seed, count, "digits", 16, 1000, 64, 1))


def test_a_seed_draws_the_same_runs_and_another_one_others():
    assert [run.key for run in drawn(3)] == [run.key for run in drawn(3)] != [run.key for run in drawn(4)]
    for plain, default, auxiliary in zip(*[iter(drawn(3))] * 3, strict=True):
        assert (plain.entry.method, plain.K) == ("plain", 1) and default.entry.name == "default"
        assert plain.network == default.network == auxiliary.network and default.K == auxiliary.K >= 2
        plain.network.check()


def test_the_verdict_names_a_default_that_lost_and_a_method_that_fails_in_silence():
    fine = [record(70.0), record(68.5, "auto", 2, name="default"), record(40.0, "penalty", 2)]
    assert verdict(fine) == []
    assert "3.0 points below" in verdict([record(70.0), record(67.0, "auto", 2, name="default")])[0]
    few = [record(93.0), {**record(90.5, "auto", 2, name="default"), "tested": 359}]
    assert verdict(few) == [] and "5.0 points below" in verdict([few[0], {**few[1], "accuracy": 88.0}])[0]
    assert "2.5 points below" in verdict([few[0], {**few[1], "tested": 10_000}])[0]
    assert "says nothing" in verdict([record(70.0), record(10.0, "penalty", 2)])[0]
    assert verdict([record(70.0), record(10.0, "penalty", 2, said=["collapsed"])]) == []
    assert verdict([record(20.0), record(10.0, "penalty", 2)]) == []  # plain training learnt nothing either
    stopped = {**record(0.0, "penalty", 2), "error": "TrainingError: it collapsed"}
    assert verdict([record(70.0), stopped]) == []
    refused = {**stopped, "error": "PlanError: no AuxNet"}
    assert verdict([record(70.0), refused]) == ["resnet20: penalty does not run: PlanError: no AuxNet"]
    broken = {**record(0.0, "auto", 2, name="default"), "error": "PlanError: too deep"}
    assert verdict([record(70.0), broken]) == ["resnet20: the default failed: PlanError: too deep"]
