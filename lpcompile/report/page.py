"""`inspect --html FILE`: the plan as one self-contained page.

>>> text = page(report_data(program, program.plan))

Figures are drawn here; `report.js` moves and searches the graph and fills the panel beside it from JSON in the page.
Names from the model are escaped here, or set as text there.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from lpcompile.core.plan import AuxPlan, Plan
from lpcompile.core.tables import Table, cost_unit, size
from lpcompile.draw import html
from lpcompile.draw.figure import Figure, hue_of, svg, svg_file
from lpcompile.draw.html import KIND_NAMES, cell, legend, part, table
from lpcompile.draw.png import png
from lpcompile.report.charts import load, memory, over_time, sweep
from lpcompile.report.data import ReportData, generations
from lpcompile.report.graph import graph

MEMORY = (("step", "weights, gradients, optimizer"), ("forward", "activations"), ("auxiliary", "boundaries, AuxNets"))

LIMIT = "The limit is what the most even split of these units would give if AuxNets and messages cost nothing."


def page(data: ReportData) -> str:
    """The whole page: a few hundred kilobytes at most."""
    plan = data.plan
    return html.page(
        "report",
        f"{data.name} in {plan.K} {'stages' if plan.K > 1 else 'stage'}",
        f"\n{part('report', 'report.css')}",
        about=escape(f"method {plan.method}, costs {plan.cost} on {plan.device}, batch {plan.batch or 'of any size'}"),
        script=part("report", "report.js"),
        data=_json(panels(data)),
        columns=f"--wide: {columns_of(len(data.cards), 6)}; --narrow: {columns_of(len(data.cards), 4)}",
        cards="".join(f"<div><b>{escape(value)}</b>{escape(name)}</div>" for name, value in data.cards),
        facts="".join(f"<p>{escape(fact)}</p>" for fact in data.facts),
        graph=svg(graph(data)),
        keys="".join(
            f'<button data-stage="{k}" style="--hue:{hue_of(k, plan.K)}"><i></i>stage {k}</button>'
            for k in range(plan.K)
        ),
        load=svg(load(plan)),
        load_legend=legend(["forward", "backward", "auxiliary", "wait"]),
        memory=svg(memory(data)),
        memory_legend="".join(f'<span><i class="{role}"></i>{name}</span>' for role, name in MEMORY),
        timeline=_section("Mini-batches on every rank", svg(over_time(data)), _kinds(data)) if any(data.lanes) else "",
        sweep=_section("ρ over K", svg(sweep(data)), f"<p>{LIMIT}</p>") if data.sweep else "",
        tables="".join(
            f"<h3>{escape(title)}</h3><div class=wide>{_table(found)}</div>" for title, found in data.tables
        ),
    )


def columns_of(cards: int, most: int) -> int:
    """Columns in which cards stand in rows as even as can be."""
    return max(1, -(-cards // -(-cards // most))) if cards else 1


def figures(data: ReportData) -> list[Figure]:
    """All figures of the report."""
    found = [graph(data), load(data.plan), memory(data)]
    return [*found, *([over_time(data)] if any(data.lanes) else []), *([sweep(data)] if data.sweep else [])]


def write_figures(data: ReportData, folder: Path) -> list[Path]:
    """Write each figure as SVG and as PNG; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for figure in figures(data):
        drawn, painted = folder / f"{figure.name}.svg", folder / f"{figure.name}.png"
        drawn.write_text(svg_file(figure), encoding="utf-8")
        painted.write_bytes(png(figure))
        written += [drawn, painted]
    return written


def panels(data: ReportData) -> dict[str, Any]:
    """The content of the panel after a click: a heading, named facts, and the source of stages and AuxNets."""
    plan, sources = data.plan, data.sources or {}
    unit = cost_unit(plan)
    stage_of = {i: s.index for s in plan.stages for i in range(s.first, s.last + 1)}
    units = []
    for i, u in enumerate(plan.units):
        facts = [["forward", f"{u.forward:.4g} {unit}"], ["backward", f"{u.backward:.4g} {unit}"],
                 ["parameters", f"{u.parameters:,}"], ["activations", size(u.saved_bytes)],
                 ["gives", size(u.output_bytes)]]  # fmt: skip
        if data.nodes:
            levels = generations(data.nodes[i])
            facts.append(["steps", f"{sum(map(len, levels))}, the longest chain {len(levels)}"])
        nodes = [[n.name, n.what, n.shape, n.lane, n.sources] for n in data.nodes[i]] if data.nodes else []
        units.append({"name": u.name, "stage": stage_of[i], "facts": facts, "nodes": nodes})
    stages = [
        {
            "name": f"Stage {s.index} on rank {s.index}",
            "facts": [["forward", f"{s.forward:.4g} {unit}"], ["backward", f"{s.backward:.4g} {unit}"],
                      ["parameters", f"{s.parameters:,}"], ["activations", size(s.saved_bytes)],
                      ["memory", size(s.memory_bytes)], ["model inputs", ", ".join(s.inputs) or "none"]],
            "units": list(range(s.first, s.last + 1)),
            "source": sources.get(f"stage_{s.index}", ""),
        }
        for s in plan.stages
    ]  # fmt: skip
    boundaries = [
        {
            "name": f"Boundary {b.index}",
            "facts": [["after", b.path or b.after], ["carries", ", ".join(map(str, b.specs))],
                      ["size", size(b.nbytes)], ["written at", b.source]],
        }
        for b in plan.boundaries
    ]  # fmt: skip
    aux = [_aux_panel(plan, k, b.aux, sources) for k, b in enumerate(plan.boundaries)]
    note = data.source_note
    return {"units": units, "stages": stages, "boundaries": boundaries, "aux": aux, "note": note, "K": plan.K}


def _aux_panel(plan: Plan, k: int, aux: AuxPlan | None, sources: Any) -> dict[str, Any]:
    if aux is None:
        return {}
    unit = cost_unit(plan)
    facts = [["makes", f"λ{k + 1}"], ["kind, start", f"{aux.kind}, {aux.init}"], ["rank", str(aux.rank)],
             ["forward", f"{aux.forward:.4g} {unit}"], ["backward", f"{aux.backward:.4g} {unit}"],
             ["of its stage", f"{100 * aux.share:.1f} %"], ["parameters", f"{aux.parameters:,}"],
             ["keeps", ", ".join(aux.kept) or "no block"], ["drops", ", ".join(aux.dropped) or "no block"],
             ["thinned", ", ".join(aux.thinned) or "no layer"]]  # fmt: skip
    return {"name": f"AuxNet {k}, in the place of stage {k}", "facts": facts, "source": sources.get(f"auxnet_{k}", "")}


def _json(value: Any) -> str:
    """JSON that is safe inside a script element: `<` is escaped, so no text can contain `</script`."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _table(found: Table) -> str:
    return table(found.headers, [[cell(str(value)) for value in row] for row in found.rows])


def _section(title: str, body: str, above: str = "") -> str:
    return f'<h2>{escape(title)}</h2>{above}<div class="wide">{body}</div>'


def _kinds(data: ReportData) -> str:
    used = {event["kind"] for lane in data.lanes for event in lane}
    text = "Simulated from the plan's costs in the steady state, numbered by mini-batch. Hover for details."
    return f'<p>{text}</p><div class="legend">{legend(kind for kind in KIND_NAMES if kind in used)}</div>'
