"""`stream`: the auxiliary variable of a boundary is the real activation, and gradients are late by part of a step.

λ_k of a micro-batch is X_k itself, sent up as soon as it is made; p comes down K-1-r micro-batches later on rank r. The
optimizers step every M micro-batches, so there is no flush and no bubble, and only the last K-1-r micro-batches of a
step meet rank r's next update:

    slot          0          1          2          3      step      K = 3, M = 4
    rank 0    F 0  B -2  F 1  B -1  F 2  B 0   F 3  B 1    ↑        B -2, B -1: of the step before, one update late
    rank 1    F 0  B -1  F 1  B 0   F 2  B 1   F 3  B 2    ↑
    rank 2    F 0  B 0   F 1  B 1   F 2  B 2   F 3  B 3    ↑        never late

    w_r(t+1) = w_r(t) - η (Σ of the last K-1-r micro-batches of batch t-1, ∇ at w_r(t-1)
                           + Σ of the first M-(K-1-r) micro-batches of batch t, ∇ at w_r(t))

So the mean delay is (K-1-r)/M of a step on rank r, where `pipedream` (the same recursion with M = 1) is K-1-r whole
steps late. Rank r holds the graphs of K-r micro-batches.

A micro-batch whose backward comes after n more updates runs forward and backward with the weights that are expected
then, ŵ_r(t+n) = w_r(t) + n (w_r(t) - w_r(t-1)): so ∇ above is taken at ŵ_r(t) instead of w_r(t-1), and what is late is
only how far the update differs from the one before. All other micro-batches need no version of the weights. Fewer
steps and Adam make updates differ more: exact pipelines (`zbh2`) lose nothing there, and take a little longer.

Rank 0 runs only one forward while X goes up and p comes down, so on a slow link every micro-batch waits for a message.
With slack=N each rank follows the one below by N micro-batches more, and so many more are in flight:

    slot          0          1          2          3      step      K = 2, M = 4, slack = 1
    rank 0    F 0  B -2  F 1  B -1  F 2  B 0   F 3  B 1    ↑
    rank 1    F -1 B -1  F 0  B 0   F 1  B 1   F 2  B 2    ↑        never late, and one micro-batch behind

Two ranks hide messages of N/2 slots each. Rank r runs forwards rN and backwards (K-1)N + K-1-r slots after
the micro-batch's own.
"""

from __future__ import annotations

from lpcompile.core.method import BatchFacts, Method, ScheduleOptions, assemble, finish
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule
from lpcompile.runtime.methods import bp

NORM_SAMPLES = 16  # lower limit for the samples of a micro-batch, for the statistics of BatchNorm
MIN_SAMPLES = 2


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    K, M, slack = plan.K, options.micro, options.slack if plan.K > 1 else 0

    def write(b: Builder) -> None:
        r = b.rank
        lag, delay = r * slack, (K - 1) * slack + K - 1 - r  # of its forwards and backwards, in micro-batches

        def version(slot: int) -> tuple[int, list[tuple[str, int]]]:
            updates = (slot % M + delay) // M - (slot % M + lag) // M  # between the micro-batch's forward and backward
            return updates, [("W", r)] if updates else []

        for slot in range(M):
            if r > 0:  # what the neighbours make in this slot
                b.recv("X", r, slot - lag + slack, r - 1)
            if r < K - 1:
                b.recv("p", r + 1, slot + 1 - delay, r + 1)
            updates, weights = version(slot - lag)
            if updates:
                b.do("predict", slot - lag, writes=weights, ahead=updates)
            bp.forward(b, slot - lag, K, reads=weights)
            bp.backward(b, slot - delay, K, reads=version(slot - delay)[1])
        finish(b, options)

    return assemble("stream", plan, options, write)


def stream_choices(facts: BatchFacts) -> tuple[int, ...]:
    """K to 2K micro-batches: gradients less than a step late, and fresher with more."""
    least = _least(facts)
    if facts.K == 1 or not facts.free or not facts.batch:
        return ()
    return tuple(range(facts.K, min(2 * facts.K, facts.batch // least) + 1))


def one_per_stage(facts: BatchFacts) -> int | None:
    """K micro-batches: every gradient less than one step late; fewer where a micro-batch would be too small."""
    if facts.K == 1 or not facts.free:
        return 1
    return max(1, min(facts.K, (facts.batch or facts.K * NORM_SAMPLES) // _least(facts)))


def _least(facts: BatchFacts) -> int:
    return NORM_SAMPLES if facts.norm else MIN_SAMPLES


STREAM = Method(
    "stream",
    "real activations stream up, gradients come back late by less than one step; no bubble, no AuxNets",
    schedule,
    bp.adjoint,
    delayed=True,
    slackens=True,
    default_micro=one_per_stage,
    micro_choices=stream_choices,
)
