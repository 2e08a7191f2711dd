"""`lagrangian`: the augmented Lagrangian with multipliers κ that are kept, per sample or in a small network.

Stage k < K-1 minimises β ψ(λ_{k+1}, X_{k+1}) + κ_{k+1}·X_{k+1}; λ_k follows -(β ∂ψ/∂λ_k + p_k - κ_k);
κ_k ← κ_k - η/(2β) · ½ ∂ψ/∂λ_k, which for the paper's ψ = |λ - X|² is its κ_k ← κ_k - η/(2β)(λ_k - X_k).

κ is stored for each sample (which forbids random augmentation, as in the paper), or given by a network of λ that
learns the updated κ: the form that the paper left open.
"""

from __future__ import annotations

from lpcompile.core.method import LamRoutes, Method, ScheduleOptions, Tensors, Terms, assemble
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.runtime.methods.penalty import HALF_BUDGET, decoupled_step, halves_of_large_batches


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    routes = LamRoutes.of(plan, options)

    return assemble("lagrangian", plan, options, lambda b: decoupled_step(b, routes, options, kappa=options.kappa))


def adjoint(t: Terms) -> Tensors:
    """P_{k+1} = β ∂ψ(λ_{k+1}, X_{k+1})/∂X_{k+1} + κ_{k+1}."""
    return tuple(kappa - d for d, kappa in zip(t.d, t.kappa, strict=True))


def correction(t: Terms) -> Tensors:
    """β ∂ψ(λ_k, X_k)/∂λ_k + p_k - κ_k."""
    return tuple(d + p - kappa for d, p, kappa in zip(t.pull, t.p, t.kappa, strict=True))


LAGRANGIAN = Method(
    "lagrangian",
    "the augmented Lagrangian: `penalty` with multipliers κ, stored per sample or in a network",
    schedule,
    adjoint,
    correction,
    aux="auxnet",
    chained=True,
    kappa=True,
    aux_budget_consistent=HALF_BUDGET,
    default_micro=halves_of_large_batches,
)
