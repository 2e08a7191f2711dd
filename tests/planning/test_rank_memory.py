"""The memory of a rank: graphs and weights that are alive at once, and their bytes."""

from __future__ import annotations

import pytest

from lpcompile.core.schedule import Instruction, Ref, Schedule
from lpcompile.planning.rank_memory import STATE_COPIES, alive, rank_memory
from lpcompile.runtime.engine.schedules import default_schedule
from tests.simulate.even_plan import even_plan


@pytest.mark.parametrize(
    "method, graphs", [("bp", [1, 1, 1]), ("gpipe", [6, 6, 6]), ("1f1b", [3, 2, 1]), ("multiplier", [1, 1, 1])]
)
def test_graphs_that_a_rank_keeps_alive(method, graphs):
    schedule = default_schedule(even_plan(3, method, batch=96))
    assert [alive(schedule, r) for r in range(3)] == graphs


def test_stashed_weights_are_counted_while_they_are_kept():
    """Stashed in slot s, read last in the backward of slot s two steps later: three versions at once."""
    items = (Instruction("stash", 0, writes=(Ref("W", 0, 0),)), Instruction("backward", -2, reads=(Ref("W", 0, -2),)))
    assert alive(Schedule("late", 1, 1, (items,), (1,)), 0, "W") == 3


def test_a_schedule_without_graphs_keeps_none_alive():
    assert alive(Schedule("none", 1, 1, ((Instruction("step"),),), (1,)), 0) == 0


def test_memory_is_state_graphs_and_receive_buffers():
    """gpipe, 2 stages of 4 units, 4 micro-batches: all activations, and one boundary of a micro-batch per buffer."""
    plan = even_plan(2, "gpipe", units=8)
    schedule = default_schedule(plan)
    state, graphs = STATE_COPIES * 4 * 4000, 4 * 10**6
    buffers = [depth * 10**6 / schedule.micro for depth in schedule.depth]
    assert rank_memory(plan, schedule) == pytest.approx([state + graphs + buffer for buffer in buffers])
    assert rank_memory(plan, schedule, 0.5) == pytest.approx([state + (graphs + buffer) / 2 for buffer in buffers])
