"""The executor: what it frees, which micro-batches it skips, and how ranks of one process take turns."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch

from lpcompile.core.schedule import STEPWISE, Builder, Ref, build
from lpcompile.errors import ScheduleError
from lpcompile.runtime.comm.transport import Local
from lpcompile.runtime.engine.executor import prepare, run, take_turns
from lpcompile.runtime.methods import METHODS, ScheduleOptions
from tests.runtime.small import bare_plan


class Fake:
    """A worker whose tensors are their own names."""

    def __init__(self, rank=0, trace=None):
        self.rank, self.trace, self.values, self.done = rank, trace, {}, []
        self.step, self.progress, self.sent, self.waited, self.now, self.clock = 0, 0, 0, 0.0, "", lambda: 1.5

    def shapes(self, key):
        return ()

    def message(self, key, value):
        return (torch.zeros(2),)

    def unpacked(self, key, found):
        return found

    def own_random(self):
        return contextlib.nullcontext()


def handle(w, item, slot):
    """Reads and writes what the schedule says, and nothing else."""
    w.done.append((item.op, slot))
    if item.op not in STEPWISE:
        for ref in item.reads:
            assert (ref.kind, ref.boundary, slot) in w.values, f"{item} reads {ref}, which is not there"
        for ref in item.writes:
            w.values[ref.kind, ref.boundary, slot] = ref


def faked(ops):
    return tuple(replace(op, handler=op.handler and handle) for op in ops)


def schedule(write, micro=1):
    b = Builder(0)
    write(b)
    return build("test", micro, [b])


def test_a_tensor_is_freed_by_its_last_reader():
    def write(b):
        b.do("forward", writes=[("graph", 0), ("X", 1)])
        b.do("penalize", boundary=1, reads=[("X", 1)], writes=[("d", 1)])
        b.do("backward", reads=[("graph", 0), ("d", 1)])
        b.do("step")

    frees = [op.frees for op in prepare(schedule(write), 0)]
    assert frees == [(), (Ref("X", 1, 0),), (Ref("graph", 0, 0), Ref("d", 1, 0)), ()]


def test_a_tensor_that_lives_over_steps_is_freed_in_the_later_step():
    """The backward of slot -1 stands before the forward of slot 0, but handles a micro-batch a step later."""

    def write(b):
        b.do("backward", slot=-1, reads=[("graph", 0)])
        b.do("forward", slot=0, writes=[("graph", 0)])
        b.do("step")

    assert [op.frees for op in prepare(schedule(write), 0)] == [(Ref("graph", 0, -1),), (), ()]


def test_a_tensor_that_nobody_reads_is_freed_where_it_is_made():
    ops = prepare(schedule(lambda b: b.do("forward", writes=[("X", 1)])), 0)
    assert ops[0].frees == (Ref("X", 1, 0),)


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("method", METHODS)
def test_no_tensor_is_missed_and_none_is_left_when_nothing_is_in_flight(method, micro):
    K, steps = 3, 3
    micro *= K if METHODS[method].pipeline else 1
    micro *= 2 if method == "dualpipev" else 1
    plan, transport = bare_plan(K, method), Local()
    found = METHODS[method].schedule(plan, ScheduleOptions(micro=micro, stash="all"))
    teams = [[Fake(stage) for stage in found.stages_of(rank)] for rank in range(K)]
    workers = [w for team in teams for w in team]
    for team in teams:
        for w in team:
            w.values = team[0].values
    programs = [faked(prepare(found, rank)) for rank in range(K)]
    end = steps * micro
    for base in range(0, end + found.lag + micro, micro):
        high = min(base + micro, end)
        take_turns(teams, [run(team, transport, programs[team[0].rank], 1, base, 0, high) for team in teams])
    assert len(workers) == plan.K
    for w in workers:
        assert not w.values and not transport.mail
        forwards = [slot for op, slot in w.done if op == "forward"]
        assert sorted(forwards) == list(range(end))


def test_micro_batches_that_do_not_exist_are_skipped_and_the_step_is_not():
    def write(b):
        b.do("backward", slot=-1, reads=[("graph", 0)])
        b.do("forward", slot=0, writes=[("graph", 0)])
        b.do("step")

    program, w = faked(prepare(schedule(write), 0)), Fake()
    list(run([w], Local(), program, 1, base=5, low=5, high=6))  # the first step after a flush
    assert w.done == [("forward", 5), ("step", 5)]
    list(run([w], Local(), program, 1, base=6, low=5, high=6))  # while flushing: nothing new comes
    assert w.done[2:] == [("backward", 5), ("step", 6)] and not w.values


def test_a_trace_has_each_instruction_with_its_rank_and_step():
    w = Fake(trace=[])
    w.step = 4
    list(run([w], Local(), faked(prepare(schedule(lambda b: b.do("forward")), 0)), 1, 0, 0, 1))
    assert w.trace == [("forward", 0, 4, 1.5, 1.5)]


def test_messages_are_counted_in_bytes():
    b, c = Builder(0), Builder(1)
    b.do("forward", writes=[("X", 1)])
    b.send("X", 1, 0, peer=1)
    c.recv("X", 1, 0, peer=0)
    c.wait("X", 1, 0)
    c.do("backward", reads=[("X", 1)])
    found, workers = build("test", 1, [b, c]), [Fake(0), Fake(1)]
    transport = Local()
    teams = [[w] for w in workers]
    take_turns(teams, [run(team, transport, faked(prepare(found, r)), 1, 0, 0, 1) for r, team in enumerate(teams)])
    assert [w.sent for w in workers] == [8, 0] and workers[1].done == [("backward", 0)]


def test_ranks_that_wait_for_each_other_are_named():
    def forever():
        while True:
            yield

    with pytest.raises(ScheduleError, match="ranks 0, 1 wait for each other; the schedule was not verified"):
        take_turns([[Fake(0)], [Fake(1)]], [forever(), forever()])


@pytest.mark.skipif(not hasattr(Exception, "add_note"), reason="notes are from Python 3.11 on")
def test_an_error_says_in_which_instruction_of_which_rank():
    def fail(w, item, slot):
        raise ValueError("odd")

    ops = tuple(replace(op, handler=fail) for op in prepare(schedule(lambda b: b.do("forward")), 0))
    with pytest.raises(ValueError) as raised:
        list(run([Fake()], Local(), ops, 1, 0, 0, 1))
    assert raised.value.__notes__ == ["in step 0 on rank 0, instruction 'forward'"]
