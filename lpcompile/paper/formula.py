"""The paper's speedup formula on the costs of a plan.

    ρ = (T_d + T_f + T_b) / ((T_f + T_b) / K + T_d + t_ψ + t_λ)

T_f and T_b are the stages' forwards and backwards, t_λ the AuxNets' of all boundaries, which the formula adds to every
stage's time. Images are in memory and ψ is one pass over a boundary, so T_d and t_ψ count as nothing here.
"""

from __future__ import annotations

from lpcompile.core.plan import Plan
from lpcompile.runtime.methods import get_method


def formula(plan: Plan) -> float | None:
    """ρ by the formula; None for a method that is not decoupled by λ."""
    method = get_method(plan.method)
    if method.exact or not method.aux:
        return None
    serial = sum(stage.forward + stage.backward for stage in plan.stages)
    nets = sum(b.aux.forward + b.aux.backward for b in plan.boundaries if b.aux is not None)
    return serial / (serial / plan.K + nets)
