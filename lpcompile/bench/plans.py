"""The plans of a bench: measured once, on one otherwise idle core, then balanced for every method.

Also how long planning takes, and the simulated speedup of more stages than this machine has cores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lpcompile.bench.work import WorkSpec, work
from lpcompile.compile import parallelize
from lpcompile.core.plan import Plan
from lpcompile.errors import LpError
from lpcompile.passes.profile.profile import fresh_costs
from lpcompile.runtime.launch import launch
from lpcompile.simulate.device_spec import THIS_MACHINE
from lpcompile.simulate.outlook import outlook_row
from lpcompile.training.build import first_weights

SIMULATED_STAGES = (2, 3, 4, 6, 8, 12, 16)
SIMULATED_METHODS = ("1f1b", "zb", "stream", "pipedream", "penalty", "multiplier")
MORE_CORES = replace(THIS_MACHINE, name="this machine with more cores", gpus=max(SIMULATED_STAGES))


@dataclass(frozen=True)
class Planned:
    """Plans by method, and reasons for refusals. start: seconds; parameter_bytes: of the model."""

    plans: dict[str, Plan]
    refused: dict[str, str]
    parameter_bytes: int
    start: dict[str, float] = field(default_factory=dict)
    scaling: list[dict[str, Any]] = field(default_factory=list)


def plans_of(spec: WorkSpec, methods: tuple[str, ...], cost: str, timeout: float) -> Planned:
    begin = time.perf_counter()
    data = launch.launch(_plan, (spec, methods, cost), world=1, K=1, device=spec.device, timeout=timeout)
    whole = time.perf_counter() - begin
    plans = {name: Plan.from_json(plan) for name, plan in data["plans"].items()}
    start = {"launch": whole - data["seconds"], **data["start"]}
    return Planned(plans, data["refused"], data["parameter_bytes"], start, data["scaling"])


def _plan(spec: WorkSpec, methods: tuple[str, ...], cost: str) -> dict[str, Any]:
    """Plan all methods, in a process that is pinned as a rank is."""
    with fresh_costs():
        return _plan_all(spec, methods, cost)


def _plan_all(spec: WorkSpec, methods: tuple[str, ...], cost: str) -> dict[str, Any]:
    begin = time.perf_counter()
    plans: dict[str, Plan] = {}
    refused: dict[str, str] = {}
    start: dict[str, float] = {}
    nbytes = 0
    for method in methods or ("",):
        given = work(spec)  # anew: AuxNets may set parts of the model to zero
        nbytes = sum(p.nbytes for p in given.model.parameters())
        if not method:
            break
        since = time.perf_counter()
        try:
            made = parallelize(given.model, spec.K, example_inputs=given.batches[0][0], cost=cost, method=method,
                               aux_init=spec.init or first_weights(spec.model, given.model),
                               aux_dtype=torch.bfloat16 if spec.aux_dtype else None,
                               threads=1)  # fmt: skip
        except LpError as error:
            refused[method] = str(error)
            continue
        if not plans:
            start["capture, measure and plan"] = time.perf_counter() - since
        plans[method] = made.plan
    return {
        "plans": {name: plan.to_json() for name, plan in plans.items()},
        "refused": refused,
        "parameter_bytes": nbytes,
        "start": start,
        "seconds": time.perf_counter() - begin,
        "scaling": _scaling(plans),
    }


def _scaling(plans: dict[str, Plan]) -> list[dict[str, Any]]:
    """Simulated ρ by K and method, each from the method's own plan, on a machine with K cores."""
    found: list[dict[str, Any]] = []
    for K in SIMULATED_STAGES:
        line: dict[str, Any] = {"K": K}
        for method in SIMULATED_METHODS:
            plan = plans.get(method)
            one = outlook_row(plan, MORE_CORES, K, method) if plan is not None and len(plan.units) >= K else None
            if one is not None:
                line[method] = one.rho
        if len(line) > 1:
            found.append(line)
    return found
