"""Measured shares of AuxNets, and the budget that leads to them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lpcompile.passes.auxnet.derive import AuxNet, derive
from lpcompile.passes.auxnet.measure import (
    MAX_DERIVATIONS,
    MIN_REPEATS,
    REPEATS,
    MeasuredShare,
    boundary_inputs,
    calibrate,
    effort_for,
    measure_share,
)
from tests.passes.auxnet.small import stack, stages


def test_the_longer_a_step_the_fewer_are_run() -> None:
    repeats = [effort_for(ms).repeats for ms in (0.0, 10.0, 400.0, 1000.0, 1e6)]
    assert repeats == sorted(repeats, reverse=True) and (repeats[0], repeats[-1]) == (REPEATS, MIN_REPEATS)
    assert effort_for(1e6).rounds < effort_for(1.0).rounds == MAX_DERIVATIONS


def test_each_stage_is_given_what_the_one_before_it_made() -> None:
    model, x = stack(4), torch.randn(2, 4)
    parts = stages(model, x, "add", "add_2")
    first, second, third = boundary_inputs(parts, [x])
    assert first == [x] and torch.equal(second[0], model[:2](x)) and torch.equal(third[0], model[:4](x))
    assert not second[0].requires_grad


def test_a_share_is_measured_without_a_trace_and_known_times_are_used_again() -> None:
    x = torch.randn(2, 4)
    stage = stages(stack(4), x, "add_2")[0]
    aux = derive(stage, budget=0.3)
    share = measure_share(stage, aux, [x], [x], repeats=2)
    assert len(share.stage) == 2 and min(share.forward, share.backward, share.total) > 0
    assert all(p.grad is None for p in (*stage.parameters(), *aux.parameters()))
    assert measure_share(stage, aux, [x], [x], repeats=2, known=share.stage).stage == share.stage


def calibrated(cost: Any, budget: float = 0.2, **options: Any) -> tuple[list[float], float, float]:
    """The budgets that were tried, the one that was taken, and its measured share, where `cost(asked)` is measured."""
    stage = stages(stack(5, inner=64), torch.randn(2, 4), "add_3")[0]
    asked: list[float] = []

    def make(budget: float) -> AuxNet:
        asked.append(budget)
        return derive(stage, budget=budget)

    def measure(aux: AuxNet) -> MeasuredShare:
        return MeasuredShare(cost(asked[-1]), cost(asked[-1]), cost(asked[-1]))

    _, taken, share = calibrate(budget, make, measure, **options)
    return asked, taken, share.total


def test_a_budget_that_is_met_is_left_as_it_is() -> None:
    assert calibrated(lambda asked: asked) == ([0.2], 0.2, 0.2)


def test_a_budget_is_corrected_by_what_was_measured() -> None:
    asked, taken, share = calibrated(lambda asked: 2 * asked)
    assert asked == pytest.approx([0.2, 0.1]) and (taken, share) == pytest.approx((0.1, 0.2))


def test_of_two_misses_the_cheaper_one_is_taken() -> None:
    asked, taken, share = calibrated(lambda asked: 0.3 if asked >= 0.2 else 0.1, rounds=2)
    assert len(asked) == 2 and taken < 0.2 and share == 0.1


def test_an_auxnet_that_was_measured_is_not_measured_again() -> None:
    asked, _, _ = calibrated(lambda asked: 0.01, budget=1.0)  # asked for all, it cannot be asked for more
    assert asked == [1.0, 1.0]
