"""The verifier accepts every schedule that a method makes, and refuses each kind of damage to one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lpcompile.core.schedule import STEPWISE, Builder, Schedule, build
from lpcompile.core.staleness import staleness
from lpcompile.core.verify import verify
from lpcompile.errors import ScheduleError
from lpcompile.runtime.methods import HELPERS, METHODS, ScheduleOptions
from tests.properties.schedule_damage import DAMAGE, REPLAYED, with_rank, without
from tests.runtime.small import bare_plan

ALL = {**METHODS, **HELPERS}


@st.composite
def schedules(draw, methods=tuple(ALL), least=1, micro=5):
    K = draw(st.integers(least, 7))
    hosts = [draw(st.sampled_from([k - 1, k])) for k in range(1, K)]
    method = draw(st.sampled_from(methods))
    count = runnable(method, K, draw(st.integers(1, micro)))
    options = ScheduleOptions(
        micro=count,
        stash=draw(st.sampled_from(["all", "2bw"])) if count >= K - 1 else "all",
        lockstep=draw(st.booleans()),
        recursive=draw(st.booleans()),
        kappa=draw(st.sampled_from(["stored", "auxnet"])),
        tied=draw(st.booleans()),
        norm=draw(st.booleans()),
    )
    return ALL[method].schedule(bare_plan(K, method, hosts), options)


def runnable(method, K, micro):
    """Torch's 1F1B wants a micro-batch for each stage, its zero bubble and interleaved orders whole rounds of them."""
    if method == "1f1b":
        return K - 1 + micro
    if method == "dualpipev":
        return 2 * K - 1 + micro
    return K * (micro // K) if method in ("zb", "interleaved", "interleaved-zb") and micro > K else micro


class Play:
    """The slow truth: start, steady steps and flush with rendezvous sends; `runs()` is False if it hangs."""

    def __init__(self, schedule: Schedule, steps: int) -> None:
        self.K, self.M = schedule.K, schedule.micro
        self.posted, self.sent, self.met, self.offered = {}, set(), {}, set()
        self.values = [set() for _ in schedule.ranks]
        flush = -(-schedule.lag // self.M)
        self.todo = [
            [
                (item, n)
                for n in range(steps + flush)
                for item in items
                if item.op in STEPWISE or 0 <= n * self.M + item.slot < steps * self.M
            ]
            for items in schedule.ranks
        ]

    def runs(self) -> bool:
        at = [0] * self.K
        moved = True
        while moved:
            moved = False
            for rank, line in enumerate(self.todo):
                while at[rank] < len(line) and self.goes(rank, *line[at[rank]]):
                    at[rank] += 1
                    moved = True
        return all(at[r] == len(self.todo[r]) for r in range(self.K)) and set(self.posted) == self.sent

    def goes(self, rank, item, n) -> bool:
        """Do one instruction, if it can be done now."""
        if item.op in ("tied", "norm"):
            self.met.setdefault((item.op, n), set()).add(rank)
            return len(self.met[item.op, n]) == self.K
        reads, writes = (
            [(r.kind, r.boundary, n * self.M + r.slot) for r in refs] for refs in (item.reads, item.writes)
        )
        if item.op == "recv":
            self.posted[rank, writes[0]] = item.peer
            return True
        if item.op == "draw" and (item.peer, rank, *writes[0][:2]) not in self.offered:
            return False
        if item.op == "wait" and (rank, writes[0]) not in self.sent:
            return False
        assert all(key in self.values[rank] for key in reads), f"rank {rank}: {item}"
        if item.op == "send":
            if self.posted.get((item.peer, reads[0])) != rank:
                return False
            self.sent.add((item.peer, reads[0]))
        if item.op == "offer":
            self.offered.add((rank, item.peer, *reads[0][:2]))
        self.values[rank].update(writes)
        return True


def play(schedule: Schedule, steps: int) -> bool:
    return Play(schedule, steps).runs()


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_every_generated_schedule_is_accepted_and_runs_to_its_end(schedule):
    verify(schedule)
    assert play(schedule, steps=3)


@settings(max_examples=50, deadline=None)
@given(schedules())
def test_a_schedule_survives_json(schedule):
    assert Schedule.from_json(schedule.to_json()) == schedule


@settings(max_examples=100, deadline=None)
@given(schedules())
def test_staleness_is_the_number_of_steps_that_a_play_counts(schedule):
    found = []
    for line in Play(schedule, steps=3 + schedule.lag // schedule.micro).todo:
        steps, met, late = 0, {}, 0
        for item, n in line:
            slot = n * schedule.micro + item.slot
            if item.op in ("stash", "forward"):
                met.setdefault(slot, steps)
            elif item.op == "backward":
                late = max(late, steps - met[slot])
            steps += item.op == "step"
        found.append(late)
    assert staleness(schedule) == tuple(found)


@pytest.mark.parametrize("kind", DAMAGE)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_a_damaged_schedule_is_refused(kind, data):
    least_micro = 2 if kind == "swap_receives" else 1
    skewed = ("multiplier", "pipedream", "fr")
    methods = skewed if kind == "too_few_buffers" else ("dgl-async",) if kind in REPLAYED else tuple(ALL)
    schedule = data.draw(schedules(methods, least=2))
    assume(schedule.micro >= least_micro)
    broken = DAMAGE[kind](data.draw, schedule)
    assume(broken != schedule)
    with pytest.raises(ScheduleError):
        verify(broken)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_what_the_verifier_accepts_after_a_move_still_runs_to_its_end(data):
    schedule = data.draw(schedules(least=2, micro=3))
    rank = data.draw(st.integers(0, schedule.K - 1))
    items = list(schedule.ranks[rank])
    item = items.pop(data.draw(st.integers(0, len(items) - 1)))
    items.insert(data.draw(st.integers(0, len(items))), item)
    moved = with_rank(schedule, rank, items)
    try:
        verify(moved)
    except ScheduleError:
        return
    assert play(moved, steps=3)


def test_two_ranks_that_wait_for_each_other_are_refused():
    schedule = METHODS["bp"].schedule(bare_plan(2, "bp", [0]), ScheduleOptions())
    first, second = (list(items) for items in schedule.ranks)
    # rank 0 wants p before it sends X, rank 1 needs X to make p
    wait = next(i for i in first if i.op == "wait")
    first.remove(wait)
    first.insert(next(n for n, i in enumerate(first) if i.op == "send"), wait)
    with pytest.raises(
        ScheduleError,
        match=r"rank 0, instruction .* waits in a circle: the ranks would hang. The circle: .*rank 0, "
        r"instruction \d+ \(wait p1\) waits for rank 1, instruction \d+ \(send p1 to 0\)",
    ):
        verify(replace(schedule, ranks=(tuple(first), tuple(second))))


def test_two_ranks_that_draw_before_they_offer_are_refused():
    first, second = Builder(0), Builder(1)
    for b, peer in ((first, 1), (second, 0)):
        b.draw("X", 1 + peer, 0, peer)
        b.do("forward", reads=[("X", 1 + peer)], writes=[("X", 1 + b.rank)])
        b.offer("X", 1 + b.rank, 0, peer)
    with pytest.raises(ScheduleError, match="waits in a circle: the ranks would hang"):
        verify(build("both wait", 1, [first, second]))


def test_a_draw_of_what_nobody_offers_is_refused():
    schedule = METHODS["dgl-async"].schedule(bare_plan(3, "dgl-async", [0, 1]), ScheduleOptions())
    with pytest.raises(ScheduleError, match=r"rank 1, instruction 0 \(draw X1 from 0\): rank 0 has no offer for it"):
        verify(without(schedule, 0, "offer"))


def test_errors_name_rank_and_instruction():
    schedule = METHODS["penalty"].schedule(bare_plan(3, "penalty", [0, 1]), ScheduleOptions())
    items = schedule.ranks[1]
    send = next(i for i, item in enumerate(items) if item.op == "send")
    broken = with_rank(schedule, 1, items[:send] + items[send + 1 :])
    with pytest.raises(ScheduleError, match=r"rank \d, instruction \d+ \(recv .*\): rank 1 has no send for it"):
        verify(broken)
