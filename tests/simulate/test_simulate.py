"""The simulator against times that can be told by hand."""

from __future__ import annotations

import cProfile
import json
import pstats
import time
from dataclasses import replace
from importlib import import_module
from itertools import pairwise

import pytest

from lpcompile.core.micro_batches import order
from lpcompile.core.schedule import Builder, Instruction, Ref, Schedule, build
from lpcompile.errors import ScheduleError
from lpcompile.runtime.engine.schedules import default_schedule, schedule_of
from lpcompile.runtime.engine.settings import Settings
from lpcompile.runtime.methods import METHODS, get_method
from lpcompile.simulate.device_spec import DeviceSpec, LinkSpec, device_spec
from lpcompile.simulate.interconnect import Interconnect
from lpcompile.simulate.op_costs import costs_of
from lpcompile.simulate.step import play, simulate
from lpcompile.simulate.step_text import chrome_trace
from tests.simulate.even_plan import IDEAL, even_plan


def test_bp_takes_the_sum_of_all_stages_and_one_rank_works_at_a_time():
    found = simulate(even_plan(4, "bp"), IDEAL)
    assert found.step == pytest.approx(48, rel=1e-3)
    assert found.rho == pytest.approx(1, rel=1e-3)
    assert found.idle == pytest.approx([0.75] * 4, abs=1e-3)


@pytest.mark.parametrize("K", [2, 4])
@pytest.mark.parametrize("method", ["gpipe", "1f1b"])
def test_a_pipeline_of_equal_stages_takes_m_plus_k_minus_1_micro_batches(method, K):
    found = simulate(even_plan(K, method), IDEAL)
    assert found.step == pytest.approx(12 * (found.micro + K - 1) / found.micro, rel=1e-3)


def test_zero_bubble_is_shorter_than_1f1b_and_not_shorter_than_the_work():
    zero, one = (simulate(even_plan(4, method), IDEAL).step for method in ("zb", "1f1b"))
    assert 12 <= zero < one


def test_penalty_takes_what_the_planner_says_where_steps_cannot_overlap():
    plan = even_plan(2, "penalty", units=8)
    assert simulate(plan, IDEAL).step == pytest.approx(plan.step, rel=0.02)


def test_multiplier_keeps_every_rank_busy_with_its_stage_and_its_auxnet():
    plan = even_plan(4, "multiplier", units=40)
    found = simulate(plan, IDEAL)
    assert max(found.idle) < 0.15 and min(found.idle) < 0.01
    assert found.step == pytest.approx(plan.step, rel=0.05)  # AuxNets run their forward again before they learn


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("K", [1, 3])
def test_every_method_is_played_and_every_instruction_has_a_cost(method, K):
    found = simulate(even_plan(K, method), IDEAL)
    assert not found.unknown
    assert found.step >= 12 * (1 - 1e-6) and len(found.idle) == K
    assert found.rho <= K * (1 + 1e-6)


@pytest.mark.parametrize("method", ["1f1b", "penalty", "multiplier"])
def test_every_rank_does_what_its_list_says_in_that_order(method):
    plan = even_plan(3, method)
    schedule, found = default_schedule(plan), simulate(plan, IDEAL)
    step = found.played - 1
    for rank, items in enumerate(schedule.ranks):
        played = [e.name for e in found.events if (e.rank, e.step) == (rank, step) and e.kind == "compute"]
        silent = ("send", "recv", "wait")
        assert played == [str(i) for i in items if i.op not in silent]


def test_a_slow_link_is_waited_for():
    slow = replace(IDEAL, inside=LinkSpec(0.001, 0))  # 1 ms for 1000 bytes
    found = simulate(even_plan(2, "bp", output_bytes=3000), slow)
    assert found.step == pytest.approx(24 + 3 + 3, rel=1e-3)


@pytest.mark.parametrize(("slack", "step"), [(0, 2 * (6 + 3)), (1, 2 * 6)])
def test_slack_hides_messages_that_stream_would_wait_for(slack, step):
    """K = 2, two micro-batches of 6 ms a rank, messages of 3 ms: half a slot, so one more in flight is enough."""
    plan, slow = even_plan(2, "stream", output_bytes=6000), replace(IDEAL, inside=LinkSpec(0.001, 0))
    schedule = schedule_of(plan, get_method("stream"), Settings(slack=slack), 2)
    assert simulate(plan, slow, schedule=schedule).step == pytest.approx(step, rel=1e-3)


def two_ranks(post_late: bool) -> Schedule:
    """Rank 0 sends X at once; rank 1 computes for a while, and posts its receive before or after that."""
    a, b = Builder(0), Builder(1)
    a.do("forward", writes=[("graph", 0), ("X", 1)])
    a.send("X", 1, 0, 1)
    if not post_late:
        b.recv("X", 1, 0, 0)
    b.do("forward", writes=[("graph", 1)])
    if post_late:
        b.recv("X", 1, 0, 0)
    b.wait("X", 1, 0)
    b.do("backward", reads=[("graph", 1), ("X", 1)])
    return build("two", 1, [a, b])


def test_a_transfer_begins_when_its_receive_is_posted():
    device = replace(IDEAL, inside=LinkSpec(0.001, 0))
    plan = even_plan(2, "bp", output_bytes=12_000)  # 12 ms a message; a forward takes 4 ms, a backward 8 ms
    early, late = (play(two_ranks(x), costs_of(plan, device, 1), Interconnect(device, 2)).step for x in (False, True))
    assert late == pytest.approx(4 + 12 + 8, rel=1e-3)
    assert early == pytest.approx(12 + 8, rel=1e-3)


def test_where_nothing_overlaps_both_sides_pay_for_a_message():
    device = replace(IDEAL, inside=LinkSpec(0.001, 0), overlap=0.0)
    found = simulate(even_plan(2, "bp", output_bytes=3000), device)
    assert found.busy == pytest.approx([12 + 3 + 3, 12 + 3 + 3], rel=1e-3)


def test_replicas_add_an_all_reduce_of_the_gradients():
    device = replace(IDEAL, inside=LinkSpec(0.001, 0), gpus=8)
    plan = even_plan(1, "bp")
    one, four = (simulate(plan, device, replicas=R) for R in (1, 4))
    assert four.averaged == pytest.approx(2 * 3 / 4 * plan.stages[0].parameter_bytes / 1000)
    assert four.step == pytest.approx(one.step + four.averaged, rel=1e-3)


def test_what_has_no_known_cost_is_listed():
    schedule = two_ranks(False)
    ranks = ((*schedule.ranks[0], Instruction("ponder")), schedule.ranks[1])
    found = play(replace(schedule, ranks=ranks), costs_of(even_plan(2), IDEAL, 1), Interconnect(IDEAL, 2))
    assert found.unknown == ("ponder",)
    assert "the cost of ponder is not known" in str(found)


def test_a_replay_buffer_is_waited_for_once():
    """dgl-async: rank 1 draws what rank 0 has offered at any time, so it runs at its own pace."""
    offer = Instruction("offer", 0, 1, 1, reads=(Ref("X", 1, 0),))
    draw = Instruction("draw", 0, 1, 0, writes=(Ref("X", 1, 0),))
    work, head = Instruction("forward"), Instruction("head", 0, 1)
    schedule = Schedule("async", 2, 1, ((work, offer, head), (draw, work)), (1, 1))
    found = play(schedule, costs_of(even_plan(2), IDEAL, 1), Interconnect(IDEAL, 2))
    assert not found.unknown
    assert found.busy[1] == pytest.approx(4, rel=1e-3)  # its own forward; rank 0 needs its head, too


def test_a_rank_may_be_hundreds_of_steps_ahead_of_those_that_its_first_message_is_on_its_way_to():
    slow = replace(IDEAL, inside=LinkSpec(1e9, 10_000_000))  # 10 s; a step takes milliseconds
    found = simulate(even_plan(3, "dgl-async"), slow)
    assert found.step == pytest.approx(simulate(even_plan(3, "dgl-async"), IDEAL).step, rel=1e-3)


def test_a_schedule_that_hangs_is_told():
    wait = Instruction("wait", 0, 1, writes=(Ref("X", 1, 0),))
    schedule = Schedule("hangs", 2, 1, ((wait,), (Instruction("forward"),)), (1, 1))
    with pytest.raises(ScheduleError, match="ranks 0 wait for what never comes"):
        play(schedule, costs_of(even_plan(2), IDEAL, 1), Interconnect(IDEAL, 2))


SLOW = 5  # times as slow as the machine on which every method takes under two seconds


@pytest.mark.parametrize("method", METHODS)
def test_64_stages_of_256_replicas_take_under_two_seconds(method):
    """With as many micro-batches as a default trainer ever has: 128 for pipelines."""
    plan = even_plan(64, method, units=128, batch=1024)
    begin = time.process_time()
    found = simulate(plan, device_spec("h100"), replicas=256)
    assert time.process_time() - begin < 2 * SLOW
    assert 0 < found.rho < 64


@pytest.mark.parametrize("method", METHODS)
def test_effort_is_in_proportion_to_what_is_played(method):
    """Counted in calls, so that no machine is too slow: a search in a loop, or torch's own plan of messages for `zb`,
    is twice the limit."""
    plan = even_plan(64, method, units=128, batch=1024)
    import_module("torch.distributed.pipelining.schedules")
    order.cache_clear()
    with cProfile.Profile() as profile:
        found = simulate(plan, device_spec("h100"), replicas=256)
    instructions = sum(map(len, default_schedule(plan, 256).ranks))
    about_as_much_as = 10  # steps to play: to write, prove and prepare one
    assert pstats.Stats(profile).total_calls < 12 * instructions * (found.played + about_as_much_as)


def test_smaller_micro_batches_pay_the_overhead_of_a_unit_again():
    device = replace(IDEAL, overhead_us=100)
    whole, parts = (costs_of(even_plan(2), device, micro) for micro in (1, 4))
    assert whole.forward[0] == pytest.approx(4.0)
    assert parts.forward[0] == pytest.approx(4 * (0.1 + 0.9 / 4))


def test_counted_costs_are_bound_by_flops_or_by_memory():
    plan = replace(even_plan(2), cost="flops")
    fast = DeviceSpec("fast", 1e6, IDEAL.inside, IDEAL.across, flops=1e13)
    narrow = replace(fast, memory_gb_per_s=1)
    assert costs_of(plan, fast, 1).forward[0] == pytest.approx(0.4, rel=1e-2)
    assert costs_of(plan, narrow, 1).forward[0] == pytest.approx(4 * 2.004, rel=1e-2)


def test_the_trace_opens_in_perfetto():
    found = simulate(even_plan(2), IDEAL)
    trace = json.loads(json.dumps(chrome_trace(found)))
    slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {e["pid"] for e in slices} == {0, 1}
    assert min(e["ts"] for e in slices) == 0 and all(e["dur"] >= 0 for e in slices)
    assert {"forward", "backward"} <= {e["name"].split(" ")[0] for e in slices}
    for rank in (0, 1):  # one thing at a time
        mine = sorted((e["ts"], e["dur"]) for e in slices if e["pid"] == rank)
        assert all(a + d <= b + 1e-2 for (a, d), (b, _) in pairwise(mine))
