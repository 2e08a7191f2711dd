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
steps late. Each backward uses the weights of its forward; a second version of the weights exists only while a step
lies between the two. Rank r holds the graphs of K-r micro-batches.
"""

from __future__ import annotations

from lpcompile.core.method import BatchFacts, Method, ScheduleOptions
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.runtime.methods import bp
from lpcompile.runtime.methods.pipedream import late

MIN_SAMPLES = 16  # lower limit for the samples of a micro-batch, for the statistics of BatchNorm


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    return late("stream", plan, options)


def one_per_stage(facts: BatchFacts) -> int | None:
    """K micro-batches: every gradient less than one step late; fewer where a micro-batch would be too small."""
    if facts.K == 1 or not facts.free:
        return 1
    return max(1, min(facts.K, (facts.batch or facts.K * MIN_SAMPLES) // MIN_SAMPLES))


STREAM = Method(
    "stream",
    "real activations stream up, gradients come back late by less than one step; no bubble, no AuxNets",
    schedule,
    bp.adjoint,
    delayed=True,
    default_micro=one_per_stage,
)
