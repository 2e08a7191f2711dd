"""The content of a report as plain data: `report_data` takes it from a program and its plan.

>>> data = report_data(program, program.plan)
>>> Path("plan.html").write_text(page(data))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lpcompile.core.plan import Plan
from lpcompile.core.tables import Table, aux_table, boundary_table, cost_unit, size, stage_table, summary, unit_table
from lpcompile.draw.charts import Lane

if TYPE_CHECKING:
    from torch import fx

    from lpcompile.passes.split.units import Unit
    from lpcompile.program import Program


COMES_IN = "comes in"  # in place of its class, for a value that an earlier unit made


@dataclass(frozen=True)
class StepNode:
    """A step inside a unit, drawn in its own row; values that are alive at the same time have different lanes."""

    name: str
    what: str  # the layer's class, or the function
    shape: str
    lane: int
    sources: tuple[int, ...]  # rows of the same unit


@dataclass(frozen=True)
class Sweep:
    """ρ with K stages, and its limit: ρ of the most even split with free AuxNets and messages."""

    K: int
    planned: float
    simulated: float | None  # None if the method has no schedule for this K and batch
    limit: float


@dataclass(frozen=True)
class ReportData:
    """The whole report. Lanes: one list of events per rank, times in ms, as `played.lanes` makes them."""

    name: str  # of the model
    plan: Plan
    facts: tuple[str, ...]  # sentences, the most important first
    cards: tuple[tuple[str, str], ...] = ()  # headline figures: (name, value)
    nodes: tuple[tuple[StepNode, ...], ...] = ()  # by unit; () without a graph
    edges: tuple[tuple[int, int], ...] = ()  # between units
    limits: tuple[float, ...] = ()  # bytes by rank
    lanes: tuple[Lane, ...] = ()
    sweep: tuple[Sweep, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    sources: Mapping[str, str] | None = None  # "stage_0", "auxnet_0", ... as emitted
    source_note: str = ""  # why there are none


def report_data(
    program: Program | None,
    plan: Plan,
    lanes: Sequence[Lane] = (),
    sweep: Sequence[Sweep] = (),
    facts: Sequence[str] = (),
    tables: Sequence[tuple[str, Table]] = (),
    name: str = "",
) -> ReportData:
    """The report of a plan. Without a program, as for a saved plan, it has neither steps nor sources."""
    chain = tuple((i, i + 1) for i in range(len(plan.units) - 1))
    known = [("Stages", stage_table(plan))]
    known += [("Boundaries", boundary_table(plan))] if plan.boundaries else []
    known += [("AuxNets", aux_table(plan))] if any(b.aux for b in plan.boundaries) else []
    found = ReportData(
        name or plan.model,
        plan,
        (*facts, *summary(plan)),
        _cards(plan),
        edges=chain,
        lanes=tuple(lanes),
        sweep=tuple(sweep),
        tables=(*known, *tables, ("Units", unit_table(plan))),
        source_note="a saved plan holds no code: name the model instead of the plan to see it",
    )
    return found if program is None else _with_program(found, program)


def _cards(plan: Plan) -> tuple[tuple[str, str], ...]:
    unit = cost_unit(plan)
    return (
        (f"planned speedup, of at most {plan.world}", f"{plan.rho:.2f}×"),
        ("a planned step", f"{plan.step:.4g} {unit}"),
        ("on one rank", f"{plan.serial:.4g} {unit}"),
        ("above the lower bound at most", f"{100 * plan.gap:.2f} %"),
        ("the largest rank's work over the mean", f"{plan.imbalance:.2f}"),
        ("the largest rank's memory", size(max(s.memory_bytes for s in plan.stages))),
    )


def _with_program(data: ReportData, program: Program) -> ReportData:
    plan, limit = data.plan, None if program.how is None else program.how.memory_limit
    if limit is not None:
        data = replace(data, limits=tuple(limit) if isinstance(limit, Sequence) else (float(limit),) * plan.world)
    sources, why = _sources(program)
    data = replace(data, sources=sources, source_note=why)
    spans = _spans(program)
    if spans is None:
        return data
    nodes, edges = _steps(program, spans)
    return replace(data, nodes=nodes, edges=edges)


def _sources(program: Program) -> tuple[dict[str, str] | None, str]:
    """The emitted source of every part; a model that cannot be emitted still has a report."""
    from lpcompile.emit.write import part_source, program_parts
    from lpcompile.errors import LpError

    found: dict[str, str] = {}
    try:
        for name, part in program_parts(program).items():
            found[name] = part_source(program, name, part)
    except LpError as error:
        return found or None, f"emit cannot write it: {error}"
    return found, ""


def _spans(program: Program) -> list[Unit] | None:
    """The steps of each unit of the plan; None for a loaded program, whose units are unknown."""
    from lpcompile.passes.split.cuts import cuts
    from lpcompile.passes.split.units import units

    if program.how is None:
        return None
    found = units(program.captured, cuts(program.captured, max_width=program.plan.width, tied=program.how.tied))
    return found if [u.name for u in found] == [u.name for u in program.plan.units] else None


def _steps(program: Program, spans: list[Unit]) -> tuple[tuple[tuple[StepNode, ...], ...], tuple[tuple[int, int], ...]]:
    from lpcompile.passes.graph.liveness import liveness

    live = liveness(program.captured._lp_graphs[True], program.captured._lp.model)
    unit_of = {live.steps[i]: u for u, span in enumerate(spans) for i in range(span.first, span.last + 1)}
    edges = {
        (unit_of[source], unit_of[node])
        for node in live.steps
        for source in node.all_input_nodes
        if source in unit_of and unit_of[source] != unit_of[node] and not live.is_cheap(source)
    }
    modules = dict(program.captured._lp.model.named_modules(remove_duplicate=False))
    nodes = tuple(_unit_nodes(live.steps[span.first : span.last + 1], modules) for span in spans)
    return nodes, tuple(sorted(edges))


def _unit_nodes(steps: Sequence[fx.Node], modules: Mapping[str, Any]) -> tuple[StepNode, ...]:
    """A unit's inputs, then its steps in order, one row each; a value keeps its lane until its last use."""
    inside = set(steps)
    outside = list(dict.fromkeys(s for n in steps for s in n.all_input_nodes if s not in inside and _counts(s)))
    rows = {node: i for i, node in enumerate([*outside, *steps])}
    last = {source: rows[node] for node in steps for source in node.all_input_nodes if source in rows}
    lanes: dict[int, int] = {}  # lane -> the row until which it is taken
    lane_of: dict[fx.Node, int] = {}
    found = []
    for node, row in rows.items():
        lane = next(i for i in range(len(rows) + 1) if lanes.get(i, -1) <= row)
        lanes[lane], lane_of[node] = last.get(node, row), lane
        sources = tuple(rows[s] for s in node.all_input_nodes if s in rows) if node in inside else ()
        shape = str(node.meta["spec"]) if node.meta.get("spec") is not None else ""
        what = _what(node, modules) if node in inside else COMES_IN
        found.append(StepNode(_path(node), what, shape, lane, sources))
    return tuple(found)


def generations(nodes: Sequence[StepNode]) -> list[list[str]]:
    """The steps of a unit by generation: those of one generation need nothing of each other."""
    import networkx as nx

    steps = [i for i, node in enumerate(nodes) if node.what != COMES_IN]
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(steps)
    graph.add_edges_from((source, i) for i in steps for source in nodes[i].sources if source in graph)
    return [[nodes[i].name for i in sorted(level)] for level in nx.topological_generations(graph)]


def _counts(node: fx.Node) -> bool:
    """Whether an input gets a row: not for parameters of functions, and not for sizes."""
    return node.op != "get_attr" and "symbol" not in node.meta


def _path(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _what(node: fx.Node, modules: Mapping[str, Any]) -> str:
    if node.op == "call_module":
        module = modules.get(str(node.target))
        return "" if module is None else type(module).__name__
    target = node.target
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))
