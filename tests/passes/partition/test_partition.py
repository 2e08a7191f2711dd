"""What `partition` promises beyond optimality (see properties/): pins, limits, errors that help, ties, speed."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lpcompile.core.cost import Profile, UnitCost
from lpcompile.errors import PlanError, UsageError
from lpcompile.passes.partition.evaluate import Link
from lpcompile.passes.partition.options import Pins
from lpcompile.planning.partition import auto_stages, evaluate, partition
from lpcompile.runtime.methods import METHODS


def profile_of(
    work: list[float],
    *,
    names: list[str] | None = None,
    sizes: list[int] | None = None,
    loss: float = 0.0,
    parameter_bytes: int = 100,
) -> Profile:
    """Units with a third of their work forward, two thirds backward."""
    names, sizes = names or [f"layer{at}" for at in range(len(work))], sizes or [10] * len(work)
    units = tuple(
        UnitCost(name, cost / 3, cost * 2 / 3, parameter_bytes=parameter_bytes, output_bytes=size)
        for name, cost, size in zip(names, work, sizes, strict=True)
    )
    return Profile(units, cost="flops", device="cpu", loss=loss)


RESNET = profile_of(
    [2, 3, 3, 4, 4, 5, 5, 1],
    names=["stem", "layer1.0", "layer1.1", "layer2.0", "layer2.1", "layer3.0", "layer3.1", "head"],
)


def test_a_method_without_auxnets_gets_the_balanced_split() -> None:
    split = partition(profile_of([1, 1, 1, 3, 3, 3]), 2, method="gpipe")
    assert (split.cuts, split.aux_ranks, split.costs) == ((4,), (-1,), (6.0, 6.0))
    assert (split.step, split.lower_bound, split.gap, split.rho, split.imbalance) == (6.0, 6.0, 0.0, 2.0, 1.0)


def test_one_stage_is_the_whole_model() -> None:
    split = partition(profile_of([1, 2, 3], loss=0.5), 1)
    assert (split.cuts, split.aux_ranks, split.gap) == ((), (), 0.0)
    assert split.finish == pytest.approx((6.5,))


def test_auxnet_work_is_balanced_away_not_added_on_top() -> None:
    work = [1.0] * 400
    plain, skewed = (partition(profile_of(work), 4, method=method) for method in ("bp", "multiplier"))
    assert plain.step == pytest.approx(100)
    assert skewed.step < 110  # AuxNet_0..2 cost 30 in all: 7.5 a rank
    assert max(skewed.work) - min(skewed.work) < 1


def test_penalty_gives_later_stages_less_because_they_start_later() -> None:
    split = partition(profile_of([1.0] * 400), 4, method="penalty")
    assert list(split.arrivals) == sorted(split.arrivals) and split.arrivals[1] > 0
    assert split.costs[0] > split.costs[2]


def test_the_loss_and_slow_ranks_count() -> None:
    even = profile_of([1.0] * 12)
    assert partition(replace(even, loss=4.0), 2, method="bp").cuts == (8,)
    assert partition(even, 2, method="bp", speeds=[3.0, 1.0]).cuts == (9,)


def test_a_slow_message_bounds_the_step_and_moves_the_cut() -> None:
    profile = profile_of([1.0] * 6, sizes=[1, 1, 900, 1, 1, 1])
    assert partition(profile, 2, method="bp").step == pytest.approx(3)
    split = partition(profile, 2, method="bp", link=Link(bytes_per_ms=100.0))
    assert split.cuts in ((2,), (4,)) and split.step == pytest.approx(4)


def test_equal_steps_prefer_fewer_bytes_then_auxnets_below() -> None:
    profile = profile_of([100.0, 1.0, 1.0, 1.0, 1.0, 1.0], sizes=[50, 40, 5, 40, 40, 0])
    split = partition(profile, 3, method="bp")
    assert split.step == pytest.approx(100) and split.cuts[0] == 1 and split.cuts[1] == 3
    zeros = profile_of([0.0] * 6)
    assert partition(zeros, 3, method="penalty").aux_ranks == (0, 1)


def test_the_same_input_gives_the_same_plan() -> None:
    profile = profile_of(list(np.random.default_rng(3).random(300)))
    assert partition(profile, 8, method="penalty") == partition(profile, 8, method="penalty")


def test_pins_by_name_and_by_prefix() -> None:
    assert 5 in partition(RESNET, 3, pins=Pins(cut_after=("layer2",))).cuts
    assert 3 in partition(RESNET, 3, pins={"cut": ["layer1.1"]}).cuts
    together = partition(RESNET, 3, pins={"together": [["layer1", "layer2.0"], "layer3"]}).cuts
    assert not {2, 3, 6} & set(together)
    assert partition(RESNET, 2, pins=Pins(cut_after=("head",))).K == 2  # the last unit ends a stage anyway


def test_evaluate_prices_cuts_that_a_user_gives() -> None:
    profile = profile_of([6.0, 6.0, 3.0])
    below = evaluate(profile, [1], method="penalty", aux_budget=0.5)
    assert below.arrivals == (0.0, 1.0) and below.finish == (9.0, 10.0) and below.work == (9.0, 9.0)
    above = evaluate(profile, [1], [1], method="penalty", aux_budget=0.5)
    assert above.arrivals == (0.0, 1.0) and above.finish == (6.0, 12.0) and above.work == (6.0, 12.0)
    skewed = evaluate(profile, [1], [1], method="multiplier", aux_budget=0.5)
    assert skewed.arrivals == (0.0, 0.0) and skewed.finish == (6.0, 12.0)
    assert skewed.memory == (310.0, 760.0)


@pytest.mark.parametrize(("cuts", "hosts"), [([0], None), ([2, 2], None), ([3], None), ([1], [2]), ([1], [0, 1])])
def test_evaluate_refuses_what_is_no_split(cuts: list[int], hosts: list[int] | None) -> None:
    with pytest.raises(PlanError, match=r"cuts|aux_ranks"):
        evaluate(profile_of([1, 1, 1]), cuts, hosts)


def test_memory_moves_cuts_and_the_error_names_the_limit_that_works() -> None:
    heavy = Profile(
        tuple(replace(u, parameter_bytes=1000 if at < 2 else 10) for at, u in enumerate(profile_of([1.0] * 8).units)),
        "flops",
        "cpu",
    )
    assert partition(heavy, 2, method="bp").cuts == (4,)
    assert partition(heavy, 2, method="bp", memory_limit=3500).cuts == (1,)
    # units 1 to 7: 3 x (1000 + 6 x 10) of state and 10 that come in
    with pytest.raises(PlanError, match=r"3,000 bytes a rank cannot be met with K=2.*that would work is 3,190"):
        partition(heavy, 2, method="bp", memory_limit=3000)
    assert max(partition(heavy, 2, method="bp", memory_limit=3190).memory) == 3190


@pytest.mark.parametrize(
    ("K", "options", "error", "message"),
    [
        (0, {}, UsageError, r"K=0 is no number of stages"),
        (True, {}, UsageError, r"K=True is no number"),
        (2.0, {}, UsageError, r"K=2.0 is no number"),
        (9, {}, PlanError, r"has 8 units between legal cuts, so at most 8 stages; ask for K<=8"),
        (2, {"method": "multiplyer"}, UsageError, r"the closest is 'multiplier', all are auto, bp, .*dgl-async"),
        (2, {"aux_budget": 1.5}, UsageError, r"aux_budget=1.5 .* from 0 to 1"),
        (2, {"aux_budget": math.nan}, UsageError, r"aux_budget=nan"),
        (2, {"speeds": [1.0]}, UsageError, r"must be 2 positive numbers"),
        (2, {"speeds": [1.0, 0.0]}, UsageError, r"must be 2 positive numbers"),
        (2, {"memory_limit": [1e9]}, UsageError, r"one positive number of bytes, or 2"),
        (2, {"memory_limit": -1}, UsageError, r"one positive number of bytes, or 2"),
        (2, {"pins": {"cut": ["layer9"]}}, PlanError, r"no unit has that name or prefix. The closest are 'layer"),
        (2, {"pins": {"cuts": []}}, UsageError, r"unknown keys \['cuts'\]"),
        (2, {"pins": {"cut": ["stem", "layer1"]}}, PlanError, r"force 2 cuts .* Ask for 3 <= K <= 8"),
        (4, {"pins": {"together": [["stem", "layer3"]]}}, PlanError, r"leave 1 possible, and K=4 needs 3"),
        (2, {"pins": {"cut": ["layer1.0"], "together": ["layer1"]}}, PlanError, r"after unit 'layer1.0'"),
    ],
)
def test_errors_say_the_fact_and_the_remedy(
    K: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        partition(RESNET, K, **options)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_costs_must_be_finite_and_not_negative(bad: float) -> None:
    units = (replace(RESNET.units[0], forward=bad), *RESNET.units[1:])
    with pytest.raises(UsageError, match=r"unit 'stem' costs .* Profile again"):
        partition(replace(RESNET, units=units), 2)
    with pytest.raises(UsageError, match=r"profile.loss="):
        partition(replace(RESNET, loss=bad), 2)


def test_auto_takes_the_smallest_count_that_is_nearly_best() -> None:
    giant = profile_of([100.0] + [1.0] * 20)
    assert auto_stages(giant, method="bp").K == 2
    assert auto_stages(profile_of([1.0] * 64), limit=4).K == 4
    assert auto_stages(profile_of([1.0] * 64), speeds=[1.0, 1.0, 1.0], limit=8).K == 3
    assert auto_stages(RESNET, method="bp", pins={"cut": ["stem", "layer1"]}, tolerance=10.0).K == 3


@pytest.mark.parametrize("method", ["bp", "multiplier", "penalty"])
@pytest.mark.parametrize("shape", ["uniform", "giant"])
def test_ten_thousand_units_take_seconds(method: str, shape: str) -> None:
    """About half a second on one idle core; the bound is on processor time and generous for busy machines."""
    random = np.random.default_rng(0)
    work = random.random(10_000)
    if shape == "giant":
        work[3000] = 500.0
    profile = profile_of([float(w) for w in work], sizes=[int(s) for s in random.choice([100, 200, 400], 10_000)])
    begin = time.process_time()
    split = partition(profile, 64, method=method, link=Link(100.0))
    assert time.process_time() - begin < 20
    assert split.gap < 1e-8


def test_every_method_is_planned() -> None:
    assert {partition(RESNET, 3, method=method).method for method in METHODS} == set(METHODS)
