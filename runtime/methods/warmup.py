"""Exact steps in which λ is prepared: AuxNets learn X (`warmup`), or the store takes X over (`warmup-stored`).

The model trains as in `1f1b` (all forwards first where there are fewer micro-batches than stages). After each forward
the AuxNets of the rank make λ as they will when they are needed, and learn from β ∂ψ/∂λ_k alone, so that the violation
measured here is the one at the moment of decoupling. λ goes up the ranks one forward after X:

    rank 0    F0 A0   F1 A1   B0   F2 A2   B1   B2            K = 2, A: AuxNet forward and backward
    rank 1         F0 B0   F1 B1        F2 B2
"""

from __future__ import annotations

from collections.abc import Callable

from lpcompile.core.method import BatchFacts, LamRoutes, Method, ScheduleOptions, Tensors, Terms, assemble, finish
from lpcompile.core.micro_batches import FORWARD, order
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule
from lpcompile.runtime.methods import bp
from lpcompile.runtime.methods.pipelines import GPIPE, ONE_F_ONE_B, fill_and_drain, post_p, post_X
from lpcompile.runtime.methods.zero_bubble import run_on_micro


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    routes = LamRoutes.of(plan, options, stage_input=False)

    def learn(b: Builder, slot: int) -> None:
        routes.make_lams(b, slot)
        for k in routes.hosted(b.rank):
            b.do("penalize", slot, k, [("lam", k), ("X", k)], [("d", k)])
            b.do("correct", slot, k, [("d", k)], [("g", k)])
            b.do("distil", slot, k, [("g", k), ("aux", k)])

    def write(b: Builder) -> None:
        pipeline_step(b, plan.K, options, learn, routes.post_lams)

    return assemble("warmup", plan, options, write)


Beside = Callable[[Builder, int], None]


def nothing(b: Builder, slot: int) -> None:
    pass


def pipeline_step(b: Builder, K: int, options: ScheduleOptions, after_forward: Beside, post: Beside = nothing) -> None:
    """A step of an exact pipeline with other work after every forward; `post` receives what that needs."""
    M = options.micro

    def post_next(slot: int) -> None:
        post_X(b, slot, M)
        if slot < M:
            post(b, slot)

    post_next(0)
    post_p(b, 0, K, M)
    for kind, slot, _ in order(ONE_F_ONE_B if M >= K else GPIPE, K, M)[b.rank]:
        if kind == FORWARD:
            post_next(slot + 1)
            bp.forward(b, slot, K)
            after_forward(b, slot)
        else:
            post_p(b, slot + 1, K, M)
            bp.backward(b, slot, K)
    finish(b, options)


def pipeline_micro(facts: BatchFacts) -> int | None:
    """As the pipeline would have, or unequal ones where the batch has no equal parts; the whole batch where it cannot
    be cut."""
    return ONE_F_ONE_B.default_micro(facts) or run_on_micro(facts) or 1


def stored_schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    routes = LamRoutes.of(plan, options, chain=False)

    def keep(b: Builder, slot: int) -> None:
        for k in routes.hosted(b.rank):
            b.do("store", slot, k, [("X", k)])

    return assemble("warmup-stored", plan, options, lambda b: pipeline_step(b, plan.K, options, keep))


def correction(t: Terms) -> Tensors:
    """β ∂ψ(λ_k, X_k)/∂λ_k."""
    return t.d


WARMUP = Method(
    "warmup",
    "exact steps in which AuxNets learn X",
    schedule,
    bp.adjoint,
    correction,
    aux="auxnet",
    exact=True,
    default_micro=pipeline_micro,
    bubble=fill_and_drain,
)
WARMUP_STORED = Method(
    "warmup-stored",
    "exact steps that store X as λ",
    stored_schedule,
    bp.adjoint,
    aux="store",
    indices=True,
    exact=True,
    default_micro=pipeline_micro,
    bubble=fill_and_drain,
)
