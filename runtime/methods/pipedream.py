"""`pipedream` and `ddg`: gradients of plain training, K-1-r micro-batches late on rank r.

A rank runs the forward of a new micro-batch and the backward of the one whose p has come back from above, in turn; the
ranks keep each other busy and nobody waits for a whole round trip.

    slot            s             s+1            s+2            K = 3
    rank 0    F s   B s-2   F s+1 B s-1   F s+2 B s
    rank 1    F s   B s-1   F s+1 B s     F s+2 B s+1
    rank 2    F s   B s     F s+1 B s+1   F s+2 B s+2

Optimizers step at the end of every `micro` slots, so between F and B of a micro-batch there are steps, K-1-r of them
with micro=1. Its backward uses the weights that its forward had (they are stashed), so that its gradient is one that
plain training could have taken, with a stage k of weights w_k:

    w_k(t+1) = w_k(t) - η ∇_k loss(batch t-(K-1-k); w_0(·), ..., w_{K-1}(·)),  each w_j from when that batch came by

`pipedream` (Narayanan et al. 2019) and `ddg` (Huo et al. 2018, decoupled parallel backpropagation with delayed
gradients) are this same recursion. DDG tells it as iterations: in iteration t batch t goes forward through all modules
with the weights w(t), then all modules run a backward at once, module k that of batch t-(K-1-k) with the error that
the module above sent in the iteration before, at w_k(t-(K-1-k)). That is the table above, read by columns: forward of
batch t on rank r comes after its step t-1 in both. PipeDream tells it by ranks, each of which goes on as soon as its
messages are there. One function writes both, and their weights are equal bit for bit.

With micro > 1 the skew is counted in micro-batches and gradients are gathered over a step's worth of them, so that a
rank's step takes the last ones of the batch before and the first ones of this batch.

`stash="2bw"` (Narayanan et al. 2021, double-buffered weights) keeps batches whole: the step of batch t-1 is made as
soon as its last backward is over, and all micro-batches of batch t use, on all ranks, the weights before it:

    w(t+1) = w(t) - η ∇ loss(batch t; w(t-1))

so there are two versions of the weights, and the same delay of one step on all ranks. With K = 1 nothing is late.
"""

from __future__ import annotations

from lpcompile.core.method import BatchFacts, Method, ScheduleOptions, assemble, finish
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule
from lpcompile.errors import UsageError
from lpcompile.runtime.methods import bp


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    if options.stash == "2bw" and plan.K > 1:
        return double_buffered(plan, options)
    return late("pipedream", plan, options)


def ddg_schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    return late("ddg", plan, options)


def late(name: str, plan: Plan, options: ScheduleOptions) -> Schedule:
    """One stashed version for each micro-batch in flight; the last rank has none in flight when it steps."""
    K = plan.K

    def write(b: Builder) -> None:
        delay = K - 1 - b.rank
        weights = [("W", b.rank)] if delay else []
        for slot in range(options.micro):
            post(b, slot, K)
            if delay:
                b.do("stash", slot, writes=weights)
            bp.forward(b, slot, K, reads=weights)
            bp.backward(b, slot - delay, K, reads=weights)
        finish(b, options)

    return assemble(name, plan, options, write)


def double_buffered(plan: Plan, options: ScheduleOptions) -> Schedule:
    K, M = plan.K, options.micro
    if M < K - 1:
        raise UsageError(
            f"stash='2bw' with micro={M} for K={K}: a batch must be over on all ranks before the next but one begins; "
            f"give micro={K - 1} or more, or stash='all'"
        )

    def write(b: Builder) -> None:
        delay, weights = K - 1 - b.rank, [("W", b.rank)]
        for slot in range(M):
            b.do("stash", slot, writes=weights)
        for slot in range(M):
            post(b, slot, K)
            if slot == delay:  # the batch before is over; the rank below may need the next receive to come so far
                finish(b, options)
            bp.forward(b, slot, K, reads=weights)
            bp.backward(b, slot - delay, K, reads=weights)
        if delay == M:
            finish(b, options)

    return assemble("pipedream", plan, options, write)


def post(b: Builder, slot: int, K: int) -> None:
    """X for this slot, and p for the next one: rank r+1 makes it in this slot."""
    r, delay = b.rank, K - 1 - b.rank
    if r > 0:
        b.recv("X", r, slot, r - 1)
    if delay:
        b.recv("p", r + 1, slot + 1 - delay, r + 1)


def double_buffer_micro(facts: BatchFacts) -> int | None:
    """One micro-batch per stage for double-buffered weights, else the whole batch."""
    return facts.K if facts.stash == "2bw" else 1


PIPEDREAM = Method(
    "pipedream",
    "plain training's gradients, up to K-1 steps late, with stashed weights; no bubble",
    schedule,
    bp.adjoint,
    delayed=True,
    default_micro=double_buffer_micro,
    double_buffers=True,
    table_1="✓××××××",
)
DDG = Method(
    "ddg",
    "delayed gradients (decoupled parallel backpropagation): the same recursion as `pipedream`",
    ddg_schedule,
    bp.adjoint,
    delayed=True,
    table_1="✓×✓✓×✓×",
)
