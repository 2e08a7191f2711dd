"""Free a recorded graph network from the numbers of nodes and edges it was recorded with.

Inputs whose rows refer to each other by number are no samples, so they cannot be cut into micro-batches; but the same
program may run at every number of nodes and edges. Recordings with more nodes, with more edges, and with more of both
must be the same graph but for integers that follow one of the two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from lpcompile.core.stage_io import TensorSpec
from lpcompile.passes.capture.attempt import Attempt
from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.capture.recording import Recording
from lpcompile.passes.capture.signature import Rebuild
from lpcompile.passes.graph.batch import Affine, Different, batch_size, confirm, same_graph

MORE_NODES, MORE_EDGES = 3, 5


def free(
    attempt: Attempt, recording: Recording, tensors: list[torch.Tensor], training: bool, rebuild: Rebuild
) -> dict[fx.Node, Any] | str:
    """The integers that follow the nodes or the edges; or why there is only one number of them."""
    nodes, edges = batch_size(tensors) or 0, edge_count(tensors)

    def graph_with(more_nodes: int, more_edges: int) -> fx.Graph:
        made = attempt.record(grown(tensors, more_nodes, more_edges), training, rebuild)
        if made.tree.text != recording.tree.text:
            raise Different(f"the output is {recording.tree} and {made.tree} with other numbers of nodes and edges")
        return made.graph

    try:
        by_nodes = graph_with(MORE_NODES, 0)
        by_edges = graph_with(0, MORE_EDGES) if edges else recording.graph
        of_nodes = same_graph(recording.graph, by_nodes, (nodes, nodes + MORE_NODES), sized=False)
        of_edges = same_graph(recording.graph, by_edges, (edges, edges + MORE_EDGES), sized=False)
        marks = {node: _both(of_nodes[node], of_edges[node]) for node in of_nodes}
        more = (2 * MORE_NODES + 1, MORE_EDGES + 1 if edges else 0)
        confirm(marks, graph_with(*more), nodes + more[0], edges + more[1])
    except (Different, Unrecordable) as error:
        return f"with other numbers of them the graph is another: {error}"
    for node, other, third in zip(recording.graph.nodes, by_nodes.nodes, by_edges.nodes, strict=True):
        if node.meta.get("spec") is not None:
            specs = (node.meta["spec"], other.meta["spec"], third.meta["spec"])
            node.meta["spec"] = _sized(*specs, nodes, edges)
    return marks


def edge_count(tensors: list[torch.Tensor]) -> int:
    """The number of columns of the first pair of rows of integers; 0 if there is none."""
    return next((int(t.shape[1]) for t in tensors if _is_pairs(t)), 0)


def grown(tensors: list[torch.Tensor], nodes: int, edges: int) -> list[torch.Tensor]:
    """The inputs with more nodes and edges: the last ones again, so that a number read from their values stays."""
    now, pairs = batch_size(tensors) or 0, edge_count(tensors)
    made = []
    for t in tensors:
        if _is_pairs(t) and t.shape[1] == pairs:
            made.append(_more(t, 1, edges))
        elif t.dim() and t.shape[0] == now:
            made.append(_more(t, 0, nodes))
        else:
            made.append(_more(t, 0, edges) if t.dim() and pairs and t.shape[0] == pairs else t)
    return made


def _is_pairs(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and tensor.shape[0] == 2 and tensor.dtype in (torch.int32, torch.int64)


def _more(tensor: torch.Tensor, dim: int, more: int) -> torch.Tensor:
    size = tensor.shape[dim]
    return tensor.index_select(dim, torch.arange(size + more, device=tensor.device).clamp(max=size - 1))


def _both(of_nodes: Any, of_edges: Any) -> Any:
    """Marks of integers that follow the nodes and marks of those that follow the edges, in one structure."""
    if isinstance(of_nodes, Affine) and isinstance(of_edges, Affine):
        raise Different("a number follows both")
    if isinstance(of_nodes, dict):
        return {key: _both(value, of_edges[key]) for key, value in of_nodes.items()}
    if isinstance(of_nodes, (list, tuple)) and not isinstance(of_nodes, Affine):
        return type(of_nodes)(_both(a, b) for a, b in zip(of_nodes, of_edges, strict=True))
    return of_nodes if of_edges is None else of_edges._replace(of="edges")


def _sized(now: TensorSpec, by_nodes: TensorSpec, by_edges: TensorSpec, nodes: int, edges: int) -> TensorSpec:
    """The spec with the sizes that are a multiple of the nodes or the edges; -1 for one that varies otherwise."""
    of_nodes, of_edges = [], []
    for size, more, wider in zip(now.shape, by_nodes.shape, by_edges.shape, strict=True):
        c, e = (more - size) // MORE_NODES, (wider - size) // MORE_EDGES
        fixed = more == wider == size
        by_node = wider == size == c * nodes and more == c * (nodes + MORE_NODES)
        by_edge = more == size == e * edges and wider == e * (edges + MORE_EDGES)
        of_nodes.append(c if by_node and not fixed else 0)
        of_edges.append(0 if fixed or by_node else e if by_edge else -1)
    return now.with_batch(tuple(of_nodes), tuple(of_edges) if any(of_edges) else ())
