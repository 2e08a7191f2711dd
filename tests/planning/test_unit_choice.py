"""The quick balance before the planner: exact on small cases."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpcompile.planning.unit_choice import smallest_maximum


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(1, 4))
def test_the_estimate_is_the_optimum(costs, K):
    K = min(K, len(costs))
    best = min(
        max(sum(costs[a:b]) for a, b in zip((0, *cuts), (*cuts, len(costs)), strict=True))
        for cuts in combinations(range(1, len(costs)), K - 1)
    )
    assert smallest_maximum(costs, K) == pytest.approx(best, rel=1e-6)
