"""A graph as plain data, to pickle and copy: fx would trace its code again and lose the nodes' meta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx


@dataclass(frozen=True)
class NodeRef:
    """Stands for a node in another node's arguments."""

    name: str


GraphData = list[tuple[str, str, Any, Any, Any, dict[str, Any]]]


def to_data(graph: fx.Graph) -> GraphData:
    def refer(value: Any) -> Any:
        name: Any = lambda v: NodeRef(v.name) if isinstance(v, fx.Node) else v  # noqa: E731
        return fx.node.map_aggregate(value, name)

    return [(n.op, n.name, n.target, _plain(refer(n.args)), _plain(refer(n.kwargs)), dict(n.meta)) for n in graph.nodes]


def from_data(data: GraphData) -> fx.Graph:
    graph = fx.Graph()
    nodes: dict[str, fx.Node] = {}

    def resolve(value: Any) -> Any:
        return fx.node.map_aggregate(value, lambda v: nodes[v.name] if isinstance(v, NodeRef) else v)

    for op, name, target, args, kwargs, meta in data:
        node = graph.create_node(op, target, resolve(args), resolve(kwargs), name=name)
        node.meta = dict(meta)
        nodes[name] = node
    return graph


def _plain(value: Any) -> Any:
    """fx's immutable lists and dicts as ordinary ones."""
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value
