"""An fx graph as a networkx graph, for questions about reachability and dominators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import fx

if TYPE_CHECKING:
    import networkx


def dataflow(graph: fx.Graph) -> networkx.DiGraph[fx.Node]:
    """All nodes of the graph, with an edge from each value to every node that reads it."""
    import networkx

    found: networkx.DiGraph[fx.Node] = networkx.DiGraph()
    found.add_nodes_from(graph.nodes)
    found.add_edges_from((source, node) for node in graph.nodes for source in node.all_input_nodes)
    return found
