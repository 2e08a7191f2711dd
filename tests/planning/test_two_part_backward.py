"""A backward in two parts takes longer than an undivided one, on all ranks but the first: the planner counts that."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.core.cost import Profile, UnitCost
from lpcompile.planning import arrange
from lpcompile.planning.partition import evaluate, partition, slowed
from lpcompile.planning.replan import moved, replan, shares_like


def units(count: int, forward: float = 1.0, backward: float = 2.0) -> Profile:
    return Profile(tuple(UnitCost(str(i), forward, backward) for i in range(count)), "measured", "cpu")


def test_a_rank_is_slower_by_what_its_backward_takes_longer():
    assert slowed(units(4), [2], [(1.0, 0.0), (0.8, 0.7)]) == (1.0, 3 / 4)
    assert slowed(units(4), [2], [(1.0, 0.0), (0.8, 0.7)], speeds=[2.0, 2.0]) == (2.0, 1.5)


def test_the_split_gives_less_to_ranks_that_take_longer():
    costs, shares = units(14), [(1.0, 0.0), (0.8, 0.7)]
    even = partition(costs, 2, method="zbh2")
    assert even.cuts == (7,)
    found = partition(costs, 2, method="zbh2", speeds=slowed(costs, even.cuts, shares))
    assert found.cuts == (8,)
    assert found.step == pytest.approx(24) and found.step < evaluate(
        costs, [7], method="zbh2", speeds=slowed(costs, [7], shares)
    ).step  # fmt: skip


class Blocks(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(12)))


def plan_with(monkeypatch: pytest.MonkeyPatch, shares: tuple[tuple[float, float], ...]) -> lpcompile.Plan:
    monkeypatch.setattr(arrange, "split_shares", lambda *given: shares)
    torch.manual_seed(0)
    x = torch.randn(64, 64)
    return lpcompile.parallelize(Blocks(), 2, example_inputs=x, method="zbh2", cache=False, measure_seconds=0.5).plan


def test_a_measured_plan_moves_work_to_the_first_rank(monkeypatch):
    even = plan_with(monkeypatch, ((1.0, 0.0), (0.5, 0.5)))
    uneven = plan_with(monkeypatch, ((1.0, 0.0), (2.0, 2.0)))
    assert uneven.cuts > even.cuts
    assert uneven.stages[1].parts == (2.0, 2.0)
    assert uneven.stages[1].work > 1.5 * (uneven.stages[1].forward + uneven.stages[1].backward)


def test_plans_for_another_split_keep_what_was_measured(monkeypatch):
    plan = plan_with(monkeypatch, ((1.0, 0.0), (0.9, 0.8)))
    assert shares_like(plan, 3, "zbh2") == ((1.0, 0.0), (0.9, 0.8), (0.9, 0.8))
    assert shares_like(plan, 3, "1f1b") == ()  # its backwards are not divided
    other = replan(plan, 3)
    assert [s.parts for s in other.stages] == [(1.0, 0.0), (0.9, 0.8), (0.9, 0.8)]
    nearby = moved(plan, 1, -1)
    assert nearby is not None and nearby.stages[1].parts == (0.9, 0.8) and nearby.step > plan.step * 0.99
