"""`gpipe`, `1f1b` and `zb` (zero bubble, ZB1P): exact pipelines, in the order that torch's own schedules have.

Each step's micro-batches follow each other through the stages, and their gradients add up to those of plain training
on the same micro-batches, in the same order. They differ in when a rank turns from forwards to backwards, so in
how many graphs it keeps (all of them, at most K - r on rank r, at most K) and in how long it is idle.

Where the model has BatchNorm, its statistics are those of a micro-batch, as always when gradients are accumulated: the
steps are not those of training on whole batches.
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lpcompile.core.method import Method, ScheduleOptions, assemble, finish
from lpcompile.core.pipeline_order import FORWARD, INPUT, PIPELINES, WEIGHT, order
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule
from lpcompile.runtime.methods import bp


def schedule(name: str, plan: Plan, options: ScheduleOptions) -> Schedule:
    """torch's table with its messages. A tensor's receive is posted one micro-batch ahead of its use, so that no rank
    has to wait for another one to take what it sends."""
    K, M = plan.K, options.micro
    lines = order(name, K, M)

    def write(b: Builder) -> None:
        post_X(b, 0, M)
        post_p(b, 0, K, M)
        for kind, slot in lines[b.rank]:
            if kind == FORWARD:
                post_X(b, slot + 1, M)
                bp.forward(b, slot, K)
            elif kind == INPUT and b.rank > 0:
                post_p(b, slot + 1, K, M)
                backward_input(b, slot, K)
            elif kind == WEIGHT and b.rank > 0:
                b.do("backward_weight", slot, reads=needed(b.rank, K))
            elif kind != INPUT:  # the first stage has no input gradients: its weights' are all of its backward
                post_p(b, slot + 1, K, M)
                bp.backward(b, slot, K)
        finish(b, options)

    return assemble(name, plan, options, write)


def post_X(b: Builder, slot: int, M: int) -> None:
    if b.rank > 0 and slot < M:
        b.recv("X", b.rank, slot, b.rank - 1)


def post_p(b: Builder, slot: int, K: int, M: int) -> None:
    if b.rank < K - 1 and slot < M:
        b.recv("p", b.rank + 1, slot, b.rank + 1)


def backward_input(b: Builder, slot: int, K: int) -> None:
    r = b.rank
    if r < K - 1:
        b.wait("p", r + 1, slot)
    b.do("backward_input", slot, reads=needed(r, K), writes=[("p", r)])
    b.send("p", r, slot, r - 1)


def needed(r: int, K: int) -> list[tuple[str, int]]:
    """Also by the gradients of weights: what was received may be part of the graph, and must not be overwritten."""
    return [("graph", r), ("X", r), *([("p", r + 1)] if r < K - 1 else [])]


def about_batch_norm(method: str, module: nn.Module, micro: int, batch: int | None) -> str:
    """What a user must know who compares with training on whole batches; nothing where there is nothing to say."""
    count = sum(isinstance(m, _BatchNorm) and m.training for m in module.modules())
    if method not in PIPELINES or micro == 1 or not count:
        return ""
    size = f"of {batch // micro} samples" if batch else f"(a {micro}th of the batch)"
    return (
        f"{method}: {count} BatchNorm layers take their statistics over micro-batches {size}, not over whole batches, "
        f"as with accumulated gradients; use a smaller micro=... where that is too few"
    )


GPIPE, ONE_F_ONE_B, ZERO_BUBBLE = (Method(name, partial(schedule, name), bp.adjoint, exact=True) for name in PIPELINES)
