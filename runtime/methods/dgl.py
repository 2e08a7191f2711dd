"""`dgl`: decoupled greedy learning (Belilovsky et al. 2020). Every stage has a loss of its own, through a head.

X goes up as in `bp`, but no gradient comes down: stage k < K-1 minimises loss(head_k(X_{k+1})). Its backward starts
from p_{k+1} = ∂loss(head_k(X_{k+1}))/∂X_{k+1}, which its own head makes, and a rank needs nothing but its X.

    rank 0    F s  H s  B s  F s+1 ...           K = 3; a rank waits for X alone, and may run ahead of those above
    rank 1         F s  H s  B s  F s+1 ...
    rank 2              F s  B s  F s+1 ...

`dgl-async`: the same with a replay buffer at every boundary. X is offered to the rank above and drawn from the buffer
there, so that no rank waits for another but for the very first X.
"""

from __future__ import annotations

from lpcompile.core.method import Method, ScheduleOptions, assemble, finish
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule
from lpcompile.runtime.methods.bp import adjoint


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    def write(b: Builder) -> None:
        for slot in range(options.micro):
            if b.rank > 0:
                for posted in ([0] if slot == 0 else []) + ([slot + 1] if slot + 1 < options.micro else []):
                    b.recv("X", b.rank, posted, b.rank - 1)  # one early, so that it comes while this one is worked on
                b.wait("X", b.rank, slot)
            greedy_slot(b, slot, plan.K, "send")
        finish(b, options)

    return assemble("dgl", plan, options, write)


def asynchronous(plan: Plan, options: ScheduleOptions) -> Schedule:
    def write(b: Builder) -> None:
        for slot in range(options.micro):
            if b.rank > 0:
                b.draw("X", b.rank, slot, b.rank - 1)
            greedy_slot(b, slot, plan.K, "offer")
        finish(b, options)

    return assemble("dgl-async", plan, options, write)


def greedy_slot(b: Builder, slot: int, K: int, up: str) -> None:
    """From X below to the stage's own loss and back; X above goes up first, so that others can begin with it."""
    r = b.rank
    below = [("X", r)] if r > 0 else []
    if r == K - 1:
        b.do("forward", slot, reads=below, writes=[("graph", r)])
        b.do("backward", slot, reads=[("graph", r), *below])
        return
    b.do("forward", slot, reads=below, writes=[("graph", r), ("X", r + 1)])
    (b.send if up == "send" else b.offer)("X", r + 1, slot, r + 1)
    b.do("head", slot, r + 1, [("X", r + 1)], [("p", r + 1)])
    b.do("backward", slot, reads=[("graph", r), *below, ("p", r + 1)])


DGL = Method(
    "dgl",
    "decoupled greedy learning: a local loss for every stage, no gradient between ranks",
    schedule,
    adjoint,
    heads=True,
    table_1="××✓✓××✓",
)
DGL_ASYNC = Method(
    "dgl-async",
    "the same with replay buffers: no rank waits, the result depends on timing",
    asynchronous,
    adjoint,
    heads=True,
    replay_buffers=True,
    table_1="×✓✓✓×✓✓",
)
