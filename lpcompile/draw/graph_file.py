"""Files of a program's graph for other tools: GraphML, DOT and JSON.

>>> write_graph(program.graph(), "model.graphml")     # yEd, Gephi, Cytoscape; .dot for Graphviz, .json for d3
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpcompile.core.system.atomic_file import write_text
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    import networkx as nx

SUFFIXES = (".graphml", ".dot", ".json")


def check_suffix(file: str | Path, option: str = "file") -> None:
    if Path(file).suffix not in SUFFIXES:
        raise UsageError(f"{option} {file} ends with none of {', '.join(SUFFIXES)}: they say what is written")


def write_graph(graph: nx.DiGraph[str], file: str | Path) -> None:
    """Write a graph in the format that the file's name ends with."""
    import networkx as nx

    check_suffix(file)
    suffix = Path(file).suffix
    if suffix == ".json":
        text = json.dumps(nx.node_link_data(graph, edges="edges"), indent=1)
    else:
        text = dot(graph) if suffix == ".dot" else "\n".join(nx.generate_graphml(graph))
    write_text(Path(file), text + "\n")


def dot(graph: nx.DiGraph[str]) -> str:
    """Graphviz: a cluster for each stage, dashed edges for copies."""
    lines = ["digraph model {", "  node [shape=box];"]
    for stage in range(graph.graph["K"]):
        lines += [f"  subgraph cluster_{stage} {{", f"    label={_quoted(f'stage {stage}')};"]
        for name, about in graph.nodes(data=True):
            if about["stage"] == stage:
                label = "\n".join(filter(None, (about["path"] or name, about["target"], about["shape"])))
                lines.append(f"    {_quoted(name)} [label={_quoted(label)}, {_attributes(about)}];")
        lines.append("  }")
    for a, b, about in graph.edges(data=True):
        style = ", style=dashed" if about["kind"] == "copy" else ""
        lines.append(f"  {_quoted(a)} -> {_quoted(b)} [{_attributes(about)}{style}];")
    return "\n".join([*lines, "}"])


def _attributes(about: dict[str, Any]) -> str:
    """Attributes of ours under names of ours: Graphviz has a `source` and a `shape` of its own."""
    return ", ".join(f"lp_{name}={_quoted(str(value))}" for name, value in about.items())


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
