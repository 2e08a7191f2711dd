"""The order of `zbh2`: every micro-batch once, exact, and no bubble from 2K-1 micro-batches on."""

from __future__ import annotations

from collections import Counter

import pytest

from lpcompile.core.method import ScheduleOptions
from lpcompile.core.staleness import staleness
from lpcompile.core.verify import verify
from lpcompile.runtime.methods import get_method
from lpcompile.runtime.methods.zero_bubble import run_on
from lpcompile.simulate.step import simulate
from tests.simulate.even_plan import IDEAL, even_plan


def text(line):
    return " ".join(f"{kind}{slot}" for kind, slot, _ in line)


def test_the_order_is_the_one_in_the_docstring():
    first, last = run_on(2, 4)
    assert text(first) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert text(last) == "F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3"


@pytest.mark.parametrize("K", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("M", [1, 2, 3, 4, 9, 16])
def test_every_micro_batch_runs_once_and_the_schedule_is_sound(K, M):
    for rank, line in enumerate(run_on(K, M)):
        kinds = ("F", "I", "W") if rank else ("F", "B")
        assert Counter(line) == Counter((kind, slot, rank) for kind in kinds for slot in range(M))
    schedule = get_method("zbh2").schedule(even_plan(K, method="bp"), ScheduleOptions(micro=M))
    verify(schedule)
    assert staleness(schedule) == (0,) * K


@pytest.mark.parametrize("K", [2, 3, 4])
def test_memory_does_not_grow_with_the_number_of_micro_batches(K):
    for rank, line in enumerate(run_on(K, 8 * K)):
        alive = most = 0
        for kind, _, _ in line:
            alive += (kind == "F") - (kind in ("W", "B"))
            most = max(most, alive)
        assert most <= 2 * (K - rank) - 1 + 2 * rank + 3


def idle(method, K, M):
    plan = even_plan(K, method="bp", batch=64)
    found = simulate(plan, IDEAL, schedule=get_method(method).schedule(plan, ScheduleOptions(micro=M)))
    return max(found.idle)


@pytest.mark.parametrize("K", [2, 3, 4])
def test_no_rank_is_idle_where_others_have_a_bubble(K):
    M = 4 * K
    assert idle("zbh2", K, M) < 0.8 * idle("zb", K, M) < idle("1f1b", K, M)
