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


@pytest.mark.parametrize("method", ["bp", "gpipe", "1f1b", "zb", "zbh2"])
def test_exact_methods_are_never_late(method):
    assert mean_staleness(schedule(method, 3, 6)) == (0.0, 0.0, 0.0)


def test_stream_has_the_order_of_pipedream_and_versions_only_where_an_update_lies_between():
    streamed, stashed = schedule("stream", 3, 4), schedule("pipedream", 3, 4)
    for r in range(3):
        mine = [(i.op, i.slot) for i in streamed.ranks[r] if i.op != "predict"]
        assert mine == [(i.op, i.slot) for i in stashed.ranks[r] if i.op != "stash"]
        assert [(i.slot, i.ahead) for i in streamed.ranks[r] if i.op == "predict"] == [
            (slot, 1) for slot in range(4 - (2 - r), 4)
        ]


def test_a_delay_of_more_than_a_step_is_predicted_for_as_many_updates():
    ahead = [i.ahead for i in schedule("stream", 8, 4).ranks[0] if i.op == "predict"]
    assert ahead == [1, 2, 2, 2]
