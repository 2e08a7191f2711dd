"""Three mini-batches of a trace, as lanes."""

from __future__ import annotations

from lpcompile.compare.timeline import lanes, near
from lpcompile.core.schedule import OPS
from lpcompile.core.trace import KINDS, batch_of, kind_of


def test_every_instruction_has_a_kind_of_work():
    known = [op for ops in KINDS.values() for op in ops]
    assert set(known) == {*OPS, "data"} and len(known) == len(set(known))


def test_events_far_from_the_middle_are_left_out():
    events = [("forward", 0, step, 0.0, 1.0) for step in range(40)]
    assert [e[2] for e in near(events, middle=20, keeps=2)] == list(range(12, 29))


def test_lanes_number_the_mini_batch_that_is_worked_on():
    """Rank 0 is one step late: in step 11 it goes back through batch 10."""
    late = [(f"backward{'' if s < 0 else ' [-1]'}", 0, 10 + s, s + 0.5, s + 1.0) for s in range(5)]
    ahead = [("forward", 1, 10 + s, s + 0.0, s + 0.5) for s in range(5)] + [("step", 1, 13, 3.6, 9.0)]
    assert batch_of(late[1], micro=1) == 10 and batch_of(("wait p1[-3]", 0, 10, 0, 0), micro=4) == 9
    first, second = lanes([late, ahead], middle=12, micro=1)
    assert [(e["batch"], e["begin"]) for e in second if e["kind"] == "forward"] == [
        (1, 0.0),
        (2, 1000.0),
        (3, 2000.0),
        (0, 3000.0),
    ]
    assert [e["batch"] for e in first] == [0, 1, 2, 3]
    assert second[-1]["kind"] == "step" and second[-1]["end"] == 4000.0, "cut where the window ends"
    assert kind_of("draw X1 from 0") == "wait" and kind_of("backward_input [+1]") == "backward"
    assert lanes([[], []], middle=3, micro=1) == [[], []]
