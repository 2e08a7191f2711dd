"""A program's captured graph and plan as one networkx.DiGraph, for tools that draw and measure graphs.

>>> graph = program.graph()
>>> [name for name, step in graph.nodes(data=True) if step["stage"] == 1 and step["cut_after"]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import fx

from lpcompile.core.plan import Plan
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.liveness import Liveness, liveness
from lpcompile.passes.split.cuts import cuts
from lpcompile.passes.split.units import Unit, units

if TYPE_CHECKING:
    import networkx as nx


def program_graph(captured: Captured, plan: Plan, tied: str = "replicate") -> nx.DiGraph[str]:
    """The training graph of a program: a node for each of its nodes, an edge for each value that one reads of another.

    Every node belongs to one unit and one stage; inputs, parameters and sizes to the stage that reads them first.
    forward, backward: the unit's cost (ms, or GFLOP: `cost_unit` of the graph), shared by the FLOPs of its steps, so
    that costs add up to those of units and stages. cut_after: whether the model may be cut after the step; if not,
    `reason` says why. boundary: the index of the boundary that the plan has there, 0 where it has none.
    kind of an edge: "inside" a stage; "boundary" where a value is carried to a later stage; "copy" where that stage has
    it by itself (inputs, parameters, sizes, values that are cheap to compute again); "output" of an earlier stage.
    """
    import networkx as nx

    live = liveness(captured._lp_graphs[True], captured._lp.model)
    positions = cuts(captured, max_width=plan.width, tied=tied)
    spans = units(captured, positions)
    flops = "GFLOP" if plan.cost == "flops" else "ms"
    graph: nx.DiGraph[str] = nx.DiGraph(model=plan.model, method=plan.method, K=plan.K, cost_unit=flops)
    unit_of = _unit_of(live, spans)
    stage_of = {unit: stage.index for stage in plan.stages for unit in range(stage.first, stage.last + 1)}
    shares = _shares(live, spans)
    boundaries = {b.position: b.index for b in plan.boundaries}
    for node in live.graph.nodes:
        step, unit = live.index.get(node, -1), unit_of[node]
        cut = positions[step] if 0 <= step < len(positions) else None
        graph.add_node(
            node.name,
            **_about(node),
            unit=plan.units[unit].name,
            unit_index=unit,
            stage=stage_of[unit],
            forward=plan.units[unit].forward * shares.get(node, 0.0),
            backward=plan.units[unit].backward * shares.get(node, 0.0),
            cut_after=cut is not None and cut.legal,
            reason=cut.reason if cut is not None else "not between two steps",
            boundary=boundaries.get(step, 0) if step >= 0 else 0,
        )
    for node in live.graph.nodes:
        for source in node.all_input_nodes:
            crosses = stage_of[unit_of[source]] != stage_of[unit_of[node]]
            graph.add_edge(source.name, node.name, kind=_crossing(live, source, node) if crosses else "inside")
    return graph


def _crossing(live: Liveness, source: fx.Node, node: fx.Node) -> str:
    if node.op == "output":
        return "output"
    return "boundary" if source in live.index and not live.is_cheap(source) else "copy"


def _unit_of(live: Liveness, spans: Sequence[Unit]) -> dict[fx.Node, int]:
    """The unit of every node. What is no step (inputs, parameters, sizes) goes to the unit of its first use."""
    found = {live.steps[i]: u for u, unit in enumerate(spans) for i in range(unit.first, unit.last + 1)}
    for node in reversed(live.graph.nodes):
        if node not in found:
            users = [found[user] for user in node.users]
            found[node] = len(spans) - 1 if node.op == "output" else min(users, default=0)
    return found


def _shares(live: Liveness, spans: Sequence[Unit]) -> dict[fx.Node, float]:
    """The share of each step in the cost of its unit, by FLOPs; even shares where none are counted."""
    found: dict[fx.Node, float] = {}
    for unit in spans:
        steps = live.steps[unit.first : unit.last + 1]
        counts = [_flops(step) for step in steps]
        total = sum(counts)
        found |= {step: n / total if total else 1 / len(steps) for step, n in zip(steps, counts, strict=True)}
    return found


def _flops(node: fx.Node) -> int:
    return int(node.meta["flops"] + node.meta["backward_flops"])


def _about(node: fx.Node) -> dict[str, Any]:
    """What the node is, in plain types."""
    spec, target = node.meta.get("spec"), node.target
    return {
        "op": node.op,
        "target": target if isinstance(target, str) else getattr(target, "__name__", str(target)),
        "path": str(node.meta.get("path", "")),
        "source": str(node.meta.get("source", "")),
        "shape": "" if spec is None else str(spec),
        "bytes": 0 if spec is None else int(spec.nbytes),
        "forward_flops": int(node.meta.get("flops", 0)),
        "backward_flops": int(node.meta.get("backward_flops", 0)),
    }
