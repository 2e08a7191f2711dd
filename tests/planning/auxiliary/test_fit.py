"""AuxNets that leave their rank level with the others."""

import dataclasses

import pytest

from lpcompile.core.cost import Profile, UnitCost
from lpcompile.planning.auxiliary.fit import smaller
from lpcompile.planning.partition import evaluate


def split(costs, cuts, hosts, shares):
    units = tuple(UnitCost(f"u{i}", c / 3, 2 * c / 3) for i, c in enumerate(costs))
    return evaluate(Profile(units, "measured", "cpu"), cuts, hosts, method="multiplier", aux_budget=shares)


def test_an_auxnet_gives_way_until_its_rank_is_level():
    best = split([100, 97], [1], [1], [0.1])  # 100 against 97 + 10
    assert smaller(best, [0.1], 0.1) == {0: pytest.approx(0.075)}  # 0.03 would be level, but that is the least
    best = split([100, 92], [1], [1], [0.1])
    aims = smaller(best, [0.1], 0.1)
    assert aims == {0: pytest.approx(0.08)}
    level = split([100, 92], [1], [1], [aims[0]])
    assert level.work == pytest.approx((100, 100)) and smaller(level, [0.08], 0.1) == {}


def test_auxnets_of_ranks_that_nobody_waits_for_stay():
    best = split([100, 80], [1], [1], [0.1])
    assert smaller(best, [0.1], 0.1) == {}
    both = split([50, 50, 60], [1, 2], [1, 1], [0.1, 0.1])  # rank 1 runs two: 60 against 60
    assert smaller(both, [0.1, 0.1], 0.1) == {}
    heavier = dataclasses.replace(both, work=(50.0, 62.0, 60.0))
    assert smaller(heavier, [0.1, 0.1], 0.1) == {0: pytest.approx(0.08), 1: pytest.approx(0.08)}
