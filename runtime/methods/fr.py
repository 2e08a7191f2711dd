"""`fr`, features replay (Huo et al. 2018): delayed gradients without stashed weights and without waiting graphs.

A micro-batch goes forward through all ranks without a graph, and each rank keeps only its input. When p comes back from
above, K-1-r micro-batches later on rank r, the stage runs again from that input with the current weights, and backward:

    w_k(t+1) = w_k(t) - η ∂stage_k(X_k of batch t-(K-1-k); w_k(t))/∂w_k · p_{k+1}

    slot            s                   s+1                     K = 3; R: replay, from the kept input
    rank 0    F s   R s-2 B s-2   F s+1 R s-1 B s-1
    rank 1    F s   R s-1 B s-1   F s+1 R s   B s
    rank 2          F s   B s           F s+1 B s+1

What a rank keeps between steps are the inputs of the K-1-r micro-batches in flight (and the state of its random
numbers at their first forward, a few kilobytes): no activations, no weights. The price is a second forward on all
ranks but the last. Dropout draws in the replay what it drew in the first forward, since p belongs to that X; BatchNorm
uses the batch's statistics both times and counts the batch once in its running ones, in the first forward.
"""

from __future__ import annotations

from lpcompile.core.method import Method, ScheduleOptions, assemble, finish
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule
from lpcompile.runtime.methods import bp
from lpcompile.runtime.methods.pipedream import post


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    K = plan.K

    def write(b: Builder) -> None:
        r, delay = b.rank, K - 1 - b.rank
        for slot in range(options.micro):
            post(b, slot, K)
            bp.forward(b, slot, K, makes="random" if delay else "graph")
            if delay:
                reads = [("random", r), *([("X", r)] if r > 0 else [])]
                b.do("replay", slot - delay, reads=reads, writes=[("graph", r)])
            bp.backward(b, slot - delay, K)
        finish(b, options)

    return assemble("fr", plan, options, write)


FR = Method(
    "fr",
    "features replay: late gradients, recomputed with the current weights; little memory, a second forward",
    schedule,
    bp.adjoint,
    delayed=True,
    reruns_stage=True,
    table_1="✓×✓✓×✓×",
)
