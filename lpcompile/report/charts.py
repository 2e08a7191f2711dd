"""The charts of a report: load and memory by rank, ranks over time, ρ over K."""

from __future__ import annotations

from lpcompile.core.cost import STATE_COPIES
from lpcompile.core.plan import Plan
from lpcompile.core.tables import cost_unit, size
from lpcompile.draw.charts import TIMELINE, bars, chart, timelines
from lpcompile.draw.figure import Figure
from lpcompile.report.data import ReportData


def load(plan: Plan) -> Figure:
    """The compute of each rank in a step, against the step time."""
    unit, rows = cost_unit(plan), []
    last = plan.K - 1
    for stage in plan.stages:
        hosted = [b.aux for b in plan.boundaries if b.aux is not None and b.aux.rank == stage.index]
        parts = [("forward", stage.forward, "forward"), ("backward", stage.backward, "backward")]
        parts.append(("auxiliary", sum(a.forward + a.backward for a in hosted), "AuxNets"))
        added = sum(length for _, length, _ in parts)
        if added > stage.work > 0:  # a fast rank: costs are those of speed 1, its work is not
            parts = [(role, length * stage.work / added, what) for role, length, what in parts]
        rest = max(0.0, stage.work - added)
        if stage.index == last and rest > 1e-3 * plan.step:
            parts.append(("step", rest, "loss"))
        busy = sum(length for _, length, _ in parts)
        parts.append(("wait", max(0.0, plan.step - busy), "idle"))
        named = [(role, length, f"{what}: {length:.4g} {unit}") for role, length, what in parts]
        idle = max(0.0, 1 - busy / plan.step) if plan.step else 0.0
        rows.append((f"rank {stage.index}", named, f"{busy:.3g} {unit}, {100 * idle:.0f} % idle"))
    return bars("load", rows, [(f"step {plan.step:.4g} {unit}", plan.step, "bound")], f"load per rank, {unit} a step")


def memory(data: ReportData) -> Figure:
    """The peak memory of each rank, against its limit."""
    rows = []
    for stage in data.plan.stages:
        state, saved = STATE_COPIES * stage.parameter_bytes, stage.saved_bytes
        parts = [("step", state, "weights, gradients, optimizer"), ("forward", saved, "activations"),
                 ("auxiliary", max(0.0, stage.memory_bytes - state - saved), "boundaries and AuxNets")]  # fmt: skip
        named = [(role, length, f"{what}: {size(length)}") for role, length, what in parts]
        rows.append((f"rank {stage.index}", named, size(stage.memory_bytes)))
    limits = sorted(set(data.limits))
    marks = [(f"limit {size(limit)}", limit, "limit") for limit in limits]
    return bars("memory", rows, marks, "peak memory per rank" if limits else "peak memory per rank, no limit was given")


def over_time(data: ReportData) -> Figure:
    return timelines([(data.plan.method, data.lanes)], who="rank")


def sweep(data: ReportData) -> Figure:
    """ρ over K, and its upper limit."""
    points = sorted(data.sweep, key=lambda s: s.K)
    played = [(float(s.K), s.simulated) for s in points if s.simulated is not None]
    K = [float(s.K) for s in points]
    lines = [("limit", K, [s.limit for s in points], "limit"), ("planned", K, [s.planned for s in points], "")]
    if played:
        lines.append(("simulated", [k for k, _ in played], [rho for _, rho in played], ""))
    return chart(
        lines, "ρ, speedup over one rank", "K, number of stages", least=1, unit="", name="sweep", width=TIMELINE
    )
