"""A recipe's whole run, predicted: the simulated step of each phase on the same stages, weighted by its share."""

from __future__ import annotations

from dataclasses import dataclass

from lpcompile.core.plan import Plan
from lpcompile.core.tables import Column, Table, percent, table_of
from lpcompile.planning.replan import with_method
from lpcompile.runtime.engine.schedules import phase_schedule
from lpcompile.runtime.methods import get_method
from lpcompile.runtime.methods.recipe import Phase, recipe_of, shares, whole_rho
from lpcompile.simulate.device_spec import DeviceSpec
from lpcompile.simulate.step import Simulation, default_device, simulate

WARMUP = "warmup"


@dataclass(frozen=True)
class PhaseStep:
    """A phase of a recipe: its share of training and its simulated step."""

    phase: str
    share: float
    micro: int
    step: float  # ms
    rho: float


@dataclass(frozen=True)
class WholeRun:
    """The phases of a run. rho: speedup of the whole of it."""

    phases: tuple[PhaseStep, ...]
    rho: float


def whole_run(plan: Plan, device: DeviceSpec | None = None) -> WholeRun | None:
    """None where the plan has a single method. A phase whose end is not known beforehand counts as nothing."""
    if not plan.recipe:
        return None
    device, recipe, rows = device or default_device(plan), recipe_of(plan.recipe), list[PhaseStep]()
    for phase, share in zip(recipe, shares(recipe), strict=True):
        other = with_method(plan, phase.method)
        found: Simulation = simulate(other, device, schedule=phase_schedule(other, phase))
        rows.append(PhaseStep(str(phase), share, found.micro, found.step, found.rho))
    return WholeRun(tuple(rows), whole_rho([r.share for r in rows], [r.rho for r in rows]))


def exact_rho(plan: Plan, device: DeviceSpec) -> float | None:
    """ρ of the exact steps that come before and between those of a plan with AuxNets; None without AuxNets."""
    if get_method(plan.method).aux != "auxnet":
        return None
    return simulate(plan, device, schedule=phase_schedule(plan, Phase(WARMUP))).rho


def whole_run_text(run: WholeRun) -> str:
    columns: list[Column[PhaseStep]] = [
        Column("phase", lambda one: one.phase),
        Column("of training", lambda one: one.share, percent),
        Column("micro", lambda one: one.micro),
        Column("step ms", lambda one: one.step, "{:.4g}".format),
        Column("ρ", lambda one: one.rho, "{:.2f}".format),
    ]
    phases: Table = table_of(run.phases, columns)
    unknown = any(one.share == 0 for one in run.phases)
    note = "; phases that end by a violation, a loss or a number of steps count as nothing" if unknown else ""
    return f"{phases}\n\nwhole run: ρ = {run.rho:.2f}{note}"
