"""`gpipe`, `1f1b` and `zb` (zero bubble, ZB1P): exact pipelines, in the order that torch's own schedules have; and
those with two stages a rank, `interleaved`, `interleaved-zb`, `zbv` (ZB-V) and `dualpipev` (DualPipe-V).

Each step's micro-batches follow each other through the stages, and their gradients add up to those of plain training
on the same micro-batches, in the same order. They differ in when a rank turns from forwards to backwards, so in
how many graphs it keeps (all of them, at most K - r on rank r, at most K) and in how long it is idle.

Where the model has BatchNorm, its statistics are those of a micro-batch, as always when gradients are accumulated: the
steps are not those of training on whole batches.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from lpcompile.core.method import BatchFacts, Method, ScheduleOptions, assemble, finish
from lpcompile.core.micro_batches import FORWARD, INPUT, WEIGHT, default_micro, order
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule
from lpcompile.runtime.methods import bp


def schedule(method: Method, plan: Plan, options: ScheduleOptions) -> Schedule:
    """The order with its messages. A receive is posted one micro-batch ahead of its use (three where a rank may be
    further ahead of its neighbour than torch's orders let it be, K in an interleaved order, where messages come round
    from the last rank to the first), so that no send waits for its receiver."""
    K, M = plan.K, options.micro
    lines = order(method, plan.world, M)
    early = 3 if method.own_order else plan.world if plan.ranks and not method.folded else 1

    def write(b: Builder) -> None:
        own = sorted({stage for _, _, stage in lines[b.rank]})
        for slot, stage in product(range(early), own):
            b.stage = stage
            post_X(b, slot, M)
            post_p(b, slot, K, M)
        for kind, slot, stage in lines[b.rank]:
            b.stage = stage
            if kind == FORWARD:
                post_X(b, slot + early, M)
                bp.forward(b, slot, K)
            elif kind == INPUT and b.stage > 0:
                post_p(b, slot + early, K, M)
                backward_input(b, slot, K)
            elif kind == WEIGHT and b.stage > 0:
                b.do("backward_weight", slot, reads=needed(b.stage, K))
            elif kind != INPUT:  # the first stage has no input gradients: its weights' are all of its backward
                post_p(b, slot + early, K, M)
                bp.backward(b, slot, K)
        finish(b, options)

    return assemble(method.name, plan, options, write)


def post_X(b: Builder, slot: int, M: int) -> None:
    if b.stage > 0 and slot < M:
        b.recv("X", b.stage, slot, b.stage - 1)


def post_p(b: Builder, slot: int, K: int, M: int) -> None:
    if b.stage < K - 1 and slot < M:
        b.recv("p", b.stage + 1, slot, b.stage + 1)


def backward_input(b: Builder, slot: int, K: int) -> None:
    r = b.stage
    if r < K - 1:
        b.wait("p", r + 1, slot)
    b.do("backward_input", slot, reads=needed(r, K), writes=[("p", r)])
    b.send("p", r, slot, r - 1)


def needed(r: int, K: int) -> list[tuple[str, int]]:
    """What a backward reads, and its part for weight gradients too: a received tensor may belong to the graph, and must
    not be overwritten before."""
    return [("graph", r), ("X", r), *([("p", r + 1)] if r < K - 1 else [])]


def about_batch_norm(method: Method, module: nn.Module, micro: int, batch: int | None) -> str:
    """A warning that BatchNorm sees micro-batches, for a pipeline on a model that has it; else an empty string."""
    count = sum(isinstance(m, _BatchNorm) and m.training for m in module.modules())
    if not method.pipeline or micro == 1 or not count:
        return ""
    size = f"of {batch // micro} samples" if batch else f"(a {micro}th of the batch)"
    return (
        f"{method.name}: {count} BatchNorm layers take their statistics over micro-batches {size}, not over whole "
        f"batches, as with accumulated gradients; use a smaller micro=... where that is too few"
    )


def about_compiled(method: Method, K: int, compile: bool) -> str:
    """A warning that weight gradients cannot be put off in compiled code; else an empty string."""
    if not compile or not method.splits_backward or K == 1:
        return ""
    return (
        f"{method.name} with compile=True: torch.compile makes one function of a stage's whole backward, which cannot "
        f"be divided, so weight gradients are not put off and ranks wait as with '1f1b'; gradients are the same. "
        f"'stream' does not wait, and compile=False keeps the two parts"
    )


def pipeline(name: str, summary: str, torch_schedule: str = "", **traits: Any) -> Method:
    """A method that follows one of torch's schedule classes, or an order of its own."""

    def write(plan: Plan, options: ScheduleOptions) -> Schedule:
        return schedule(made, plan, options)

    def micro(facts: BatchFacts) -> int | None:
        return default_micro(made, facts.K, facts.batch, facts.free)

    common: dict[str, Any] = {"exact": True, "default_micro": micro, "torch_schedule": torch_schedule}
    made = Method(name, summary, write, bp.adjoint, **{"bubble": fill_and_drain, **common, **traits})
    return made


def fill_and_drain(K: int, micro: int) -> float:
    """A pipeline fills and drains: one micro-batch of the other ranks' work."""
    return 1 / micro


def weight_gradients_fill(K: int, micro: int) -> float:
    """ZB1P's bubble is a third of that, with forward, input and weight gradients of equal cost (Qi et al. 2023)."""
    return 1 / micro / 3


def unfilled(K: int, micro: int) -> float:
    """Share of the other ranks' work that is waited for in ZB-H2 and ZB-V: none from 2K-1 micro-batches on."""
    missing = max(0, 2 * K - 1 - micro)
    return missing / (3 * micro * max(1, K - 1))


def whole_rounds(K: int, micro: int) -> bool:
    return K == 1 or micro % max(1, micro // K) == 0


GPIPE = pipeline("gpipe", "exact pipeline: all forwards, then all backwards", "ScheduleGPipe", table_1="✓××××✓×")
ONE_F_ONE_B = pipeline(
    "1f1b",
    "exact pipeline: forwards and backwards in turn, at most K - r graphs on rank r",
    "Schedule1F1B",
    accepts_micro=lambda K, micro: micro >= K,
)
ZERO_BUBBLE = pipeline(
    "zb",
    "exact pipeline: weight gradients computed apart, in what would be idle time (ZB1P)",
    "ScheduleInterleavedZeroBubble",
    accepts_micro=lambda K, micro: micro % max(1, micro // K) == 0,  # whole rounds
    bubble=weight_gradients_fill,
    splits_backward=True,
)
INTERLEAVED = pipeline(
    "interleaved",
    "exact pipeline: `1f1b` with two stages a rank, in half of its bubble",
    "ScheduleInterleaved1F1B",
    accepts_micro=whole_rounds,
    bubble=lambda K, micro: 1 / micro / 2,
    chunks=2,
)
INTERLEAVED_ZERO_BUBBLE = pipeline(
    "interleaved-zb",
    "exact pipeline: the same, weight gradients computed apart",
    "ScheduleInterleavedZeroBubble",
    accepts_micro=whole_rounds,
    bubble=lambda K, micro: 1 / micro / 6,
    splits_backward=True,
    chunks=2,
)
ZBV = pipeline(
    "zbv",
    "exact pipeline: two stages a rank in a V, weight gradients computed apart (ZB-V)",
    "ScheduleZBVZeroBubble",
    bubble=unfilled,
    splits_backward=True,
    chunks=2,
    folded=True,
)
DUAL_PIPE_V = pipeline(
    "dualpipev",
    "exact pipeline: two stages a rank in a V, forwards beside backwards of others (DualPipe-V)",
    "ScheduleDualPipeV",
    accepts_micro=lambda K, micro: micro >= 2 * K or K == 1,
    bubble=lambda K, micro: 1 / micro / 8,
    splits_backward=True,
    chunks=2,
    folded=True,
)
