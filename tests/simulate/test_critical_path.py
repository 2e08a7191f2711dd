"""The critical path on schedules whose slow rank or message is known, and its length on all others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lpcompile.core.schedule import Builder, Instruction, Schedule, build
from lpcompile.planning.replan import moved, replan
from lpcompile.runtime.engine.schedules import default_schedule
from lpcompile.runtime.methods import METHODS
from lpcompile.simulate.critical_path import CriticalPath, PathPart, critical_path
from lpcompile.simulate.device_spec import LinkSpec
from lpcompile.simulate.interconnect import Interconnect
from lpcompile.simulate.op_costs import costs_of
from lpcompile.simulate.outlook import outlook
from lpcompile.simulate.outlook_text import path_table, path_text
from lpcompile.simulate.step import play, simulate
from tests.simulate.even_plan import IDEAL, even_plan

SLOW = replace(IDEAL, inside=LinkSpec(0.001, 0))  # 1 ms for 1000 bytes


def path_of(schedule: Schedule, plan, device=IDEAL) -> CriticalPath:
    costs, network = costs_of(plan, device, schedule.micro), Interconnect(device, plan.world)
    found = critical_path(schedule, costs, network)
    assert found.ms == pytest.approx(play(schedule, costs, network).step, rel=1e-3)
    return found


def shares(path: CriticalPath) -> dict[tuple[int, int, str], float]:
    return {(part.rank, part.peer, part.what): round(part.ms, 2) for part in path.parts if part.ms > 1e-3}


def one_message() -> Schedule:
    """Rank 0: forward, send. Rank 1: receive, wait, backward. A forward takes 4 ms, a backward 8 ms."""
    a, b = Builder(0), Builder(1)
    a.do("forward", writes=[("graph", 0), ("X", 1)])
    a.send("X", 1, 0, 1)
    b.recv("X", 1, 0, 0)
    b.wait("X", 1, 0)
    b.do("backward", reads=[("X", 1)])
    return build("one message", 1, [a, b])


def test_a_long_message_is_on_the_path_and_the_rank_that_sends_it_early_is_not():
    found = path_of(one_message(), even_plan(2, "bp", output_bytes=12_000), SLOW)
    assert shares(found) == {(0, 1, "message"): 12, (1, -1, "backward"): 8}
    assert [str(part) for part in found.parts] == ["the message from rank 0 to rank 1", "rank 1's backward"]


def test_a_short_message_to_a_rank_that_is_slower_anyway_is_not_on_the_path():
    found = path_of(one_message(), even_plan(2, "bp"))
    assert shares(found) == {(1, -1, "backward"): 8} and found.steps == 1


def test_the_rank_that_all_others_meet_last_is_the_path():
    work, meet = Instruction("forward"), Instruction("norm")
    schedule = Schedule("meet", 3, 1, ((work, meet), (work, work, work, meet), (work, work, meet)), (1, 1, 1))
    assert shares(path_of(schedule, even_plan(3, "bp"))) == {(1, -1, "forward"): 12}


def test_a_cycle_over_two_steps_counts_half_for_each():
    """Rank 0 works with what rank 1 made of its micro-batch before the last: two round trips share the work."""
    a, b = Builder(0), Builder(1)
    a.recv("p", 1, -2, 1)
    a.wait("p", 1, -2)
    a.do("forward", writes=[("X", 1)])
    a.send("X", 1, 0, 1)
    b.recv("X", 1, 0, 0)
    b.wait("X", 1, 0)
    b.do("forward", reads=[("X", 1)], writes=[("p", 1)])
    b.send("p", 1, 0, 0)
    found = path_of(build("round trips", 1, [a, b]), even_plan(2, "bp", output_bytes=10_000), SLOW)
    assert found.steps == 2 and found.ms == pytest.approx((4 + 10 + 4 + 10) / 2)
    assert shares(found) == {(0, 1, "message"): 5, (1, 0, "message"): 5, (0, -1, "forward"): 2, (1, -1, "forward"): 2}


def test_where_nothing_overlaps_the_time_of_send_and_wait_is_the_messages():
    found = path_of(default_schedule(even_plan(2, "bp")), even_plan(2, "bp", output_bytes=3000),
                    replace(SLOW, overlap=0.0))  # fmt: skip
    assert shares(found)[0, 1, "message"] == pytest.approx(3) and found.ms == pytest.approx(30)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("K", [1, 3])
def test_the_path_of_every_method_is_as_long_as_its_step(method, K):
    plan = even_plan(K, method)
    found = path_of(default_schedule(plan), plan, replace(IDEAL, inside=LinkSpec(1, 10), overlap=0.5))
    assert sum(part.share for part in found.parts) == pytest.approx(1)
    assert [part.ms for part in found.parts] == sorted((part.ms for part in found.parts), reverse=True)


@settings(max_examples=20, deadline=None)
@given(
    costs=st.lists(st.floats(0.1, 20.0), min_size=5, max_size=10),
    K=st.integers(1, 5),
    method=st.sampled_from(sorted(METHODS)),
    speed=st.floats(0.01, 100.0),
)
def test_whatever_the_costs_the_path_is_as_long_as_the_step(costs, K, method, speed):
    assume(len(METHODS[method].ranks(K)) <= len(costs))
    base = even_plan(1, "bp", units=len(costs), batch=96)
    units = tuple(replace(u, forward=c, backward=2 * c) for u, c in zip(base.units, costs, strict=True))
    plan = replan(replace(base, units=units, serial=3 * sum(costs)), K, method)
    device, schedule = replace(IDEAL, inside=LinkSpec(speed, 10.0)), default_schedule(plan)
    found = critical_path(schedule, costs_of(plan, device, schedule.micro), Interconnect(device, K))
    assert found.ms == pytest.approx(simulate(plan, device).step, rel=2e-3)


@pytest.mark.parametrize(
    "plan, device, remedy",
    [
        (even_plan(2, "bp"), IDEAL, "a method that overlaps the stages"),
        (even_plan(2, "gpipe"), IDEAL, "more micro-batches"),
        (even_plan(2, "penalty"), IDEAL, "a smaller AuxNet on rank 0"),
        (even_plan(2, "pipedream"), IDEAL, "more stages, or faster devices"),
        (even_plan(2, "bp", output_bytes=50_000), SLOW,
         "a faster link between ranks 0 and 1 or a method that overlaps the stages"),
        (even_plan(3, "bp", output_bytes=50_000), SLOW,
         "faster links between ranks or a method that overlaps the stages"),
        (moved(even_plan(2, "pipedream"), 1, 1), IDEAL, "boundary 1 moved one unit earlier"),
    ],
)  # fmt: skip
def test_the_remedy_is_for_what_the_path_is_made_of(plan, device, remedy):
    assert outlook(plan, device).remedy == remedy


def test_the_path_is_told_in_one_line_and_in_a_table():
    found = outlook(even_plan(2, "fr"), IDEAL)
    assert path_text(found) == (
        "critical path: rank 0's backward (50 %), its replay (25 %), its forward (25 %); "
        "shorter with boundary 1 moved one unit earlier"
    )
    table = path_table(
        CriticalPath(4.0, 1, (PathPart(0, 1, "message", 3.0, 0.75), PathPart(-1, -1, "collective", 1.0, 0.25)))
    )
    assert [row[:3] for row in table.rows] == [
        ["the message from rank 0 to rank 1", "3", "75 %"],
        ["the collective of all ranks", "1", "25 %"],
    ]
