"""The plans of a bench: measured once, on one otherwise idle core, then balanced for every method.

Also how long planning takes, and the simulated speedup of more stages than this machine has cores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lpcompile.bench.contenders.work import Work, WorkSpec, work
from lpcompile.compile import parallelize
from lpcompile.core.plan import Plan
from lpcompile.errors import LpError
from lpcompile.passes.partition.evaluate import Link
from lpcompile.passes.profile.profile import fresh_costs
from lpcompile.planning import replan
from lpcompile.program import Program
from lpcompile.runtime.launch import board, launch
from lpcompile.runtime.methods import get_method
from lpcompile.simulate.device_spec import THIS_MACHINE
from lpcompile.simulate.outlook import outlook_row
from lpcompile.training.build import first_weights

SIMULATED_STAGES = (2, 3, 4, 6, 8, 12, 16)
SIMULATED_METHODS = ("1f1b", "zb", "zbh2", "stream", "pipedream", "penalty", "multiplier")
MORE_CORES = replace(THIS_MACHINE, name="this machine with more cores", gpus=max(SIMULATED_STAGES))


Links = dict[str, dict[str | None, Link]]  # by rate, then by the form of messages


@dataclass(frozen=True)
class Planned:
    """Plans by method, and reasons for refusals. start: seconds; parameter_bytes: of the model. over: by rate of a
    link, then by method and form of its messages, the plans that are cut elsewhere because of it."""

    plans: dict[str, Plan]
    refused: dict[str, str]
    parameter_bytes: int
    start: dict[str, float] = field(default_factory=dict)
    scaling: list[dict[str, Any]] = field(default_factory=list)
    over: dict[str, dict[tuple[str, str | None], Plan]] = field(default_factory=dict)


def plans_of(
    spec: WorkSpec, methods: tuple[str, ...], cost: str, timeout: float, links: dict[str, dict[str | None, Link]]
) -> Planned:
    """links: by rate and by the form of messages, see `Planned.over`."""
    begin = time.perf_counter()
    data = launch.launch(_plan, (spec, methods, cost, links), world=1, K=1, device=spec.device, timeout=timeout)
    whole = time.perf_counter() - begin
    plans = {name: Plan.from_json(plan) for name, plan in data["plans"].items()}
    start = {"launch": whole - data["seconds"], **data["start"]}
    over = {rate: {how: Plan.from_json(p) for how, p in found.items()} for rate, found in data["over"].items()}
    return Planned(plans, data["refused"], data["parameter_bytes"], start, data["scaling"], over)


def _plan(spec: WorkSpec, methods: tuple[str, ...], cost: str, links: Links) -> dict[str, Any]:
    """Plan all methods, in a process pinned to one core like a rank. While torch.compile's own processes make code, it
    does nothing itself."""
    mood = board.RESTS if spec.compile else board.WORKS
    with fresh_costs(), board.away(0, "planning", mood):
        return _plan_all(spec, methods, cost, links)


def _plan_all(spec: WorkSpec, methods: tuple[str, ...], cost: str, links: Links) -> dict[str, Any]:
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
            made = _compiled(spec, given, method, cost)
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
        "over": {rate: _over(spec, plans, cost, found) for rate, found in links.items()},
    }


def _compiled(spec: WorkSpec, given: Work, method: str, cost: str, link: Link | None = None) -> Program:
    dtype = torch.bfloat16 if spec.aux_dtype and get_method(method).aux == "auxnet" else None
    init = spec.init or first_weights(spec.model, given.model)
    return parallelize(given.model, spec.K, example_inputs=given.batches[0][0], cost=cost, method=method,
                       aux_init=init, aux_dtype=dtype, threads=1, link=link, compile=spec.compile)  # fmt: skip


def _over(
    spec: WorkSpec, plans: dict[str, Plan], cost: str, links: dict[str | None, Link]
) -> dict[tuple[str, str | None], dict[str, Any]]:
    """The plans that a link changes: those whose cuts the search over the plan's own costs moves."""
    found = {}
    for method, plan in plans.items():
        for form, link in links.items():
            if replan.cuts_over(plan, link) == replan.cuts_over(plan, None):
                continue
            made = _compiled(spec, work(spec), method, cost, link).plan
            if made.cuts != plan.cuts:
                found[method, form] = made.to_json()
    return found


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
