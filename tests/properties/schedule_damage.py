"""Kinds of damage to a schedule, each of which the verifier must refuse."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import assume
from hypothesis import strategies as st

from lpcompile.core.schedule import Ref

COMPUTATIONS = ("stash", "replay", "forward", "backward", "backward_input", "aux_forward", "penalize", "correct",
                "recall", "kappa", "head")  # fmt: skip


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


def dropped(draw, schedule, ops):
    rank, i = pick(draw, schedule, *ops)
    items = schedule.ranks[rank]
    return with_rank(schedule, rank, items[:i] + items[i + 1 :])


def doubled(draw, schedule, op):
    rank, i = pick(draw, schedule, op)
    items = schedule.ranks[rank]
    return with_rank(schedule, rank, items[: i + 1] + items[i:])


def to_another_rank(draw, schedule, op):
    rank, i = pick(draw, schedule, op)
    assume(schedule.K > 2)
    items = list(schedule.ranks[rank])
    peer = draw(st.sampled_from([r for r in range(schedule.K) if r not in (rank, items[i].peer)]))
    items[i] = replace(items[i], peer=peer)
    return with_rank(schedule, rank, items)


def without(schedule, rank, op):
    return with_rank(schedule, rank, [item for item in schedule.ranks[rank] if item.op != op])


def without_any(draw, schedule, op):
    return without(schedule, pick(draw, schedule, op)[0], op)


DAMAGE |= {
    "drop_a_send": partial(dropped, ops=("send",)),
    "drop_a_receive": partial(dropped, ops=("recv",)),
    "drop_a_wait": partial(dropped, ops=("wait",)),
    "miss_a_meeting": partial(dropped, ops=("tied", "norm")),
    "send_twice": partial(doubled, op="send"),
    "receive_twice": partial(doubled, op="recv"),
    "send_to_another_rank": partial(to_another_rank, op="send"),
    "draw_from_another_rank": partial(to_another_rank, op="draw"),
    "offer_nothing": partial(without_any, op="offer"),
    "draw_nothing": partial(without_any, op="draw"),
}


def channel(schedule, item):
    return item.peer, item.ref.kind, schedule.lane(item.boundary)


@damage
def swap_receives(draw, schedule):
    """Two receives of one channel in the other order."""
    rank, i = pick(draw, schedule, "recv")
    items = list(schedule.ranks[rank])
    same = [
        j
        for j, item in enumerate(items)
        if j != i and item.op == "recv" and channel(schedule, item) == channel(schedule, items[i])
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
    post = next((j for j, item in enumerate(items) if item.op == "recv" and item.ref == wait.ref), None)
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
def send_before_it_is_made(draw, schedule):
    rank, i = pick(draw, schedule, "send")
    items = list(schedule.ranks[rank])
    send = items.pop(i)
    made = [j for j, item in enumerate(items) if item.op != "recv" and send.ref in item.writes]
    assume(made)
    return with_rank(schedule, rank, [*items[: made[0]], send, *items[made[0] :]])


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
