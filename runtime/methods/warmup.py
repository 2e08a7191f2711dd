"""Exact steps in which λ is prepared: AuxNets learn X (`warmup`), or the store takes X over (`warmup-stored`).

The model trains as in `bp`. Beside it the AuxNets make λ as they will when they are needed, and learn from β ∂ψ/∂λ_k
alone, so that the violation measured here is the one at the moment of decoupling.
"""

from __future__ import annotations

from lpcompile.core.method import (
    LamRoutes,
    Method,
    ScheduleOptions,
    Tensors,
    Terms,
    assemble,
    finish,
    hosts_of,
)
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule
from lpcompile.runtime.methods import bp


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    routes = LamRoutes(plan.K, hosts_of(plan, options), chain=not options.recursive, stage_input=False)

    def write(b: Builder) -> None:
        for slot in range(options.micro):
            routes.post_lams(b, slot)
            bp.post(b, slot, plan.K)
            bp.forward(b, slot, plan.K)
            routes.make_lams(b, slot)
            bp.backward(b, slot, plan.K)
            for k in routes.hosted(b.rank):
                b.do("penalize", slot, k, [("lam", k), ("X", k)], [("d", k)])
                b.do("correct", slot, k, [("d", k)], [("g", k)])
                b.do("distil", slot, k, [("g", k), ("aux", k)])
        finish(b, options)

    return assemble("warmup", plan, options, write)


def stored_schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    hosts = hosts_of(plan, options)

    def write(b: Builder) -> None:
        for slot in range(options.micro):
            bp.post(b, slot, plan.K)
            bp.forward(b, slot, plan.K)
            bp.backward(b, slot, plan.K)
            for k in (k for k, host in hosts.items() if host == b.rank):
                b.do("store", slot, k, [("X", k)])
        finish(b, options)

    return assemble("warmup-stored", plan, options, write)


def correction(t: Terms) -> Tensors:
    """β ∂ψ(λ_k, X_k)/∂λ_k."""
    return t.d


WARMUP = Method(
    "warmup", "exact steps in which AuxNets learn X", schedule, bp.adjoint, correction, aux="auxnet", exact=True
)
WARMUP_STORED = Method(
    "warmup-stored", "exact steps that store X as λ", stored_schedule, bp.adjoint, aux="store", indices=True, exact=True
)
