"""The watchdog: which rank is named, of ranks that only exist as boards, in seconds that are only counted."""

from __future__ import annotations

import pytest

from lpcompile.runtime.launch.board import LOADING, RESTS, WAITS, WORKS, Doing
from lpcompile.runtime.launch.cpu import Share
from lpcompile.runtime.launch.watch import STARTING, Watch

TIMEOUT = 6


class Ranks:
    """Ranks as (text, mood, the second of their last note); `stopped` have no heartbeat from a second on, `busy` use a
    CPU, `starved` wait for one in this share of the time."""

    def __init__(self, *doing, stopped=None, busy=(), starved=None):
        self.doing, self.stopped, self.busy = doing, stopped or {}, busy
        self.watch = Watch(TIMEOUT, lambda rank, seconds, _: self.share(rank, seconds, starved or {}))

    def share(self, rank, seconds, starved):
        return Share(seconds if rank in self.busy else 0.0, seconds * starved.get(rank, 0.0))

    def at(self, second):
        found = {}
        for rank, (text, mood, last_note) in enumerate(self.doing):
            now = min(second, self.stopped.get(rank, second))
            number = min(now, last_note)
            cpu = float(now) if rank in self.busy else 0.0
            found[rank] = Doing(float(number), 3, text, mood, 1 + number, 1 + now, cpu)
        return found


@pytest.fixture
def named(clock):
    """When which rank is named: (second, rank), or None."""

    def of(ranks, seconds=4 * TIMEOUT):
        ranks.watch.looked = 0.0
        for second in range(1, seconds):
            clock[0] = float(second)
            rank = ranks.watch.look(ranks.at(second))
            if rank is not None:
                return second, rank
        return None

    return of


@pytest.mark.parametrize("text", ["forward", "wait X1", "(saving a checkpoint)", "(compiling)", LOADING, "(starting)"])
def test_a_stopped_process_is_named_whatever_it_did_and_not_those_that_wait_for_it(named, text):
    waits = ("wait X1", WORKS, 2)
    ranks = Ranks(waits, (text, WORKS, 2), ("send p1 to 0", WORKS, 2), stopped={1: 2})
    second, rank = named(ranks)
    assert rank == 1 and TIMEOUT < second <= TIMEOUT + 4


def test_a_rank_that_replays_old_data_is_not_named_for_the_one_that_is_stopped(named):
    ranks = Ranks(("forward", WORKS, 2), ("draw X1", WORKS, 10**6), stopped={0: 2}, busy=(1,))
    assert named(ranks)[1] == 0


def test_an_instruction_that_does_not_end_is_named_also_if_it_computes(named):
    ranks = Ranks(("wait X1", WORKS, 2), ("forward", WORKS, 2), busy=(1,))
    assert named(ranks) == (TIMEOUT + 3, 1)


def test_a_process_whose_heartbeat_waits_while_it_computes_is_not_taken_for_stopped(named):
    waits = ("(evaluation)", WAITS, 0)
    assert named(Ranks(waits, ("(evaluation)", WORKS, 2), stopped={1: 2}, busy=(0, 1))) is None


def test_data_that_does_not_come_is_named(named):
    assert named(Ranks(("wait X1", WORKS, 2), (LOADING, WORKS, 2)))[1] == 1


def test_work_outside_of_steps_may_take_as_long_as_it_computes(named):
    assert named(Ranks(("(compiling the model)", WORKS, 0), ("(starting)", WAITS, 0), busy=(0,))) is None


def test_where_nothing_moves_the_rank_that_waits_for_nobody_is_named(named):
    assert named(Ranks(("(evaluation)", WAITS, 4), ("(evaluation)", WORKS, 4), ("wait X1", WORKS, 1)))[1] == 1


def test_a_rank_may_rest(named):
    assert named(Ranks(("(waiting for its turn)", RESTS, 0), ("(waiting for its turn)", RESTS, 0))) is None


@pytest.mark.parametrize("text", ["(compiling the model)", "forward", LOADING])
def test_a_process_that_waits_for_a_cpu_is_late_and_does_not_hang(named, text):
    def late(share):
        return Ranks((text, WORKS, 1), stopped={0: 1}, starved={0: share})

    assert named(late(1.0), 100 * TIMEOUT) is None
    second, _ = named(late(0.75), 100 * TIMEOUT)
    assert 3 * TIMEOUT < second <= 4 * TIMEOUT


def test_a_process_that_is_not_there_yet_has_time_to_import_torch(clock):
    watch, found = Watch(TIMEOUT), []
    for clock[0] in range(1, int(STARTING) + 5):
        found.append(watch.look({0: Doing(0.0, 0, "")}))
    assert found[int(STARTING) - 2] is None and found[-1] == 0


def test_a_job_that_was_suspended_as_a_whole_goes_on(clock):
    watch = Watch(TIMEOUT)
    for clock[0] in (1.0, 2.0, 9000.0, 9001.0):
        assert watch.look({0: Doing(1.0, 3, "forward", WORKS, 4, 5)}) is None


def test_ranks_that_have_ended_are_not_named(clock):
    watch = Watch(TIMEOUT)
    for clock[0] in range(30):
        assert watch.look({0: Doing(1.0, 3, "forward", WORKS, 4, 5)}, over=[0]) is None
