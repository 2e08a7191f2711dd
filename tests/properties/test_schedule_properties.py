"""The verifier accepts every schedule that a method makes, and refuses each kind of damage to one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lpcompile.core.schedule import STEPWISE, Builder, Ref, Schedule, build
from lpcompile.core.staleness import staleness
from lpcompile.core.verify import verify
from lpcompile.errors import ScheduleError
from lpcompile.runtime.methods import HELPERS, METHODS, ScheduleOptions

ALL = {**METHODS, **HELPERS}
COMPUTATIONS = ("stash", "replay", "forward", "backward", "backward_input", "aux_forward", "penalize", "correct",
                "recall", "kappa", "head")  # fmt: skip


def plan(hosts):
    """As much of a plan as a schedule depends on."""
    boundaries = tuple(SimpleNamespace(index=k, aux_rank=host) for k, host in enumerate(hosts, start=1))
    return SimpleNamespace(K=len(hosts) + 1, boundaries=boundaries)


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
    return ALL[method].schedule(plan(hosts), options)


def runnable(method, K, micro):
    """Torch's 1F1B wants a micro-batch for each stage, its zero bubble whole rounds of them."""
    if method == "1f1b":
        return K - 1 + micro
    return K * (micro // K) if method == "zb" and micro > K else micro


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


def with_rank(schedule, rank, items):
    ranks = list(schedule.ranks)
    ranks[rank] = tuple(items)
    return replace(schedule, ranks=tuple(ranks))


def pick(draw, schedule, *ops):
    places = [(r, i) for r, items in enumerate(schedule.ranks) for i, item in enumerate(items) if item.op in ops]
    assume(places)
    return draw(st.sampled_from(places))


DAMAGE = {}
REPLAYED = ("offer_nothing", "draw_nothing", "draw_from_another_rank")


def damage(function):
    DAMAGE[function.__name__] = function
    return function


@damage
def drop_a_send(draw, schedule):
    rank, i = pick(draw, schedule, "send")
    items = schedule.ranks[rank]
    return with_rank(schedule, rank, items[:i] + items[i + 1 :])


@damage
def drop_a_receive(draw, schedule):
    rank, i = pick(draw, schedule, "recv")
    items = schedule.ranks[rank]
    return with_rank(schedule, rank, items[:i] + items[i + 1 :])


@damage
def drop_a_wait(draw, schedule):
    rank, i = pick(draw, schedule, "wait")
    items = schedule.ranks[rank]
    return with_rank(schedule, rank, items[:i] + items[i + 1 :])


@damage
def send_twice(draw, schedule):
    rank, i = pick(draw, schedule, "send")
    items = schedule.ranks[rank]
    return with_rank(schedule, rank, items[: i + 1] + items[i:])


@damage
def receive_twice(draw, schedule):
    rank, i = pick(draw, schedule, "recv")
    items = schedule.ranks[rank]
    return with_rank(schedule, rank, items[: i + 1] + items[i:])


@damage
def swap_receives(draw, schedule):
    """Two receives of one channel in the other order."""
    rank, i = pick(draw, schedule, "recv")
    items = list(schedule.ranks[rank])
    same = [
        j
        for j, item in enumerate(items)
        if j != i and item.op == "recv" and (item.peer, item.ref.kind) == (items[i].peer, items[i].ref.kind)
    ]
    assume(same)
    j = draw(st.sampled_from(same))
    items[i], items[j] = items[j], items[i]
    return with_rank(schedule, rank, items)


@damage
def wait_before_the_receive_is_posted(draw, schedule):
    rank, i = pick(draw, schedule, "wait")
    items = list(schedule.ranks[rank])
    wait = items.pop(i)
    post = (
        next(j for j, item in enumerate(items) if item.op == "recv" and item.ref == wait.ref)
        if any(item.op == "recv" and item.ref == wait.ref for item in items)
        else None
    )
    assume(post is not None)
    return with_rank(schedule, rank, [*items[:post], wait, *items[post:]])


@damage
def wait_after_the_first_use(draw, schedule):
    rank, i = pick(draw, schedule, "wait")
    items = list(schedule.ranks[rank])
    wait = items.pop(i)
    uses = [j for j, item in enumerate(items) if wait.ref in item.reads]
    assume(uses)
    return with_rank(schedule, rank, [*items[: uses[0] + 1], wait, *items[uses[0] + 1 :]])


@damage
def send_another_tensor(draw, schedule):
    rank, i = pick(draw, schedule, "send")
    items = list(schedule.ranks[rank])
    ref = items[i].ref
    other = Ref(ref.kind, ref.boundary + 1, ref.slot)
    items[i] = replace(items[i], reads=(other,))
    return with_rank(schedule, rank, items)


@damage
def send_to_another_rank(draw, schedule):
    rank, i = pick(draw, schedule, "send")
    items = list(schedule.ranks[rank])
    assume(schedule.K > 2)
    peer = draw(st.sampled_from([r for r in range(schedule.K) if r not in (rank, items[i].peer)]))
    items[i] = replace(items[i], peer=peer)
    return with_rank(schedule, rank, items)


@damage
def send_before_it_is_made(draw, schedule):
    rank, i = pick(draw, schedule, "send")
    items = list(schedule.ranks[rank])
    send = items.pop(i)
    made = [j for j, item in enumerate(items) if item.op != "recv" and send.ref in item.writes]
    assume(made)
    return with_rank(schedule, rank, [*items[: made[0]], send, *items[made[0] :]])


def without(schedule, rank, op):
    return with_rank(schedule, rank, [item for item in schedule.ranks[rank] if item.op != op])


@damage
def offer_nothing(draw, schedule):
    return without(schedule, pick(draw, schedule, "offer")[0], "offer")


@damage
def draw_nothing(draw, schedule):
    return without(schedule, pick(draw, schedule, "draw")[0], "draw")


@damage
def draw_from_another_rank(draw, schedule):
    rank, i = pick(draw, schedule, "draw")
    assume(schedule.K > 2)
    items = list(schedule.ranks[rank])
    peer = draw(st.sampled_from([r for r in range(schedule.K) if r not in (rank, items[i].peer)]))
    items[i] = replace(items[i], peer=peer)
    return with_rank(schedule, rank, items)


@damage
def forget_a_computation(draw, schedule):
    rank, i = pick(draw, schedule, *COMPUTATIONS)
    items = schedule.ranks[rank]
    assume(items[i].writes)
    readers = [item for item in items if any(w in item.reads for w in items[i].writes)]
    assume(readers)
    return with_rank(schedule, rank, items[:i] + items[i + 1 :])


@damage
def too_few_buffers(draw, schedule):
    rank = draw(st.integers(0, schedule.K - 1))
    assume(schedule.depth[rank] > 1)
    depth = list(schedule.depth)
    depth[rank] -= 1
    return replace(schedule, depth=tuple(depth))


@damage
def miss_a_meeting(draw, schedule):
    rank, i = pick(draw, schedule, "tied", "norm")
    assume(schedule.K > 1)
    items = schedule.ranks[rank]
    return with_rank(schedule, rank, items[:i] + items[i + 1 :])


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
    schedule = METHODS["bp"].schedule(plan([0]), ScheduleOptions())
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
    schedule = METHODS["dgl-async"].schedule(plan([0, 1]), ScheduleOptions())
    with pytest.raises(ScheduleError, match=r"rank 1, instruction 0 \(draw X1 from 0\): rank 0 has no offer for it"):
        verify(without(schedule, 0, "offer"))


def test_errors_name_rank_and_instruction():
    schedule = METHODS["penalty"].schedule(plan([0, 1]), ScheduleOptions())
    items = schedule.ranks[1]
    send = next(i for i, item in enumerate(items) if item.op == "send")
    broken = with_rank(schedule, 1, items[:send] + items[send + 1 :])
    with pytest.raises(ScheduleError, match=r"rank \d, instruction \d+ \(recv .*\): rank 1 has no send for it"):
        verify(broken)
