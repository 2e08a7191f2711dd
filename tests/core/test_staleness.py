"""The delay of gradients, in updates, read off schedules."""

from __future__ import annotations

import pytest

from lpcompile.core.method import ScheduleOptions
from lpcompile.core.staleness import mean_staleness, staleness
from lpcompile.core.verify import verify
from lpcompile.runtime.methods import METHODS
from tests.simulate.even_plan import even_plan


def schedule(method, K, micro):
    found = METHODS[method].schedule(even_plan(K, method="bp"), ScheduleOptions(micro=micro))
    verify(found)
    return found


@pytest.mark.parametrize(("K", "M"), [(2, 1), (2, 2), (3, 4), (4, 4), (4, 16), (8, 4)])
def test_stream_is_late_by_its_skew_over_the_micro_batches_of_a_step(K, M):
    assert mean_staleness(schedule("stream", K, M)) == pytest.approx([(K - 1 - r) / M for r in range(K)])


def test_stream_keeps_all_delays_below_one_step_where_micro_batches_outnumber_the_skew():
    assert staleness(schedule("stream", 4, 4)) == (1, 1, 1, 0)
    assert staleness(schedule("pipedream", 4, 1)) == (3, 2, 1, 0)


@pytest.mark.parametrize("method", ["bp", "gpipe", "1f1b", "zb"])
def test_exact_methods_are_never_late(method):
    assert mean_staleness(schedule(method, 3, 6)) == (0.0, 0.0, 0.0)


def test_stream_and_pipedream_are_the_same_recursion():
    assert schedule("stream", 3, 4).ranks == schedule("pipedream", 3, 4).ranks
