"""`penalty-stored`: the paper's baseline. λ of every sample is kept and corrected in place; there are no AuxNets.

λ_k ← λ_k - η(β ∂ψ/∂λ_k + p_k) for each sample of the batch. The first time a sample is seen, the step is exact and its
λ becomes X. Augmentation must not change from epoch to epoch, for λ belongs to one input.
"""

from __future__ import annotations

from lpcompile.core.method import LamRoutes, Method, ScheduleOptions, assemble
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.runtime.methods.penalty import adjoint, correction, decoupled_step


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    routes = LamRoutes.of(plan, options, chain=False)

    return assemble("penalty-stored", plan, options, lambda b: decoupled_step(b, routes, options, stored=True))


STORED = Method(
    "penalty-stored",
    "the paper's baseline: λ of every sample is stored; no augmentation",
    schedule,
    adjoint,
    correction,
    aux="store",
    indices=True,
    first_sight="warmup-stored",
)
