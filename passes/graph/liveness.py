"""What crosses each position of a graph, and what need not cross because any stage can make it again."""

from __future__ import annotations

import weakref
from functools import cached_property

from torch import fx, nn

_known: weakref.WeakKeyDictionary[fx.Graph, Liveness] = weakref.WeakKeyDictionary()
CHEAP_SHARE = 0.01  # a value is cheap to make again below this share of the model's forward FLOPs


class Liveness:
    """Program order of a captured graph: `steps[i]` is the i-th computing node, position p lies after step p.

    Inputs, parameters, buffers and sizes are at hand in every stage and are no steps.
    """

    def __init__(self, graph: fx.Graph, model: nn.Module) -> None:
        self.graph = graph
        self.parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self.steps = [
            n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output") and "symbol" not in n.meta
        ]
        self.index = {node: i for i, node in enumerate(self.steps)}
        self.outputs: list[fx.Node] = list(next(n for n in graph.nodes if n.op == "output").args[0])
        self.writers: dict[int, list[fx.Node]] = {}
        for node in graph.nodes:
            for key in node.meta.get("writes", ()):
                self.writers.setdefault(key, []).append(node)

    @cached_property
    def expensive(self) -> set[fx.Node]:
        """Nodes that must run once: layers, random draws, parameters, whatever is heavy, and all that follows them."""
        limit = CHEAP_SHARE * sum(n.meta.get("flops", 0) for n in self.steps)
        roots = {n for n in self.graph.nodes if self._is_root(n, limit)}
        reached: set[fx.Node] = set()
        while roots - reached:
            waiting = list(roots - reached)
            while waiting:
                node = waiting.pop()
                if node not in reached:
                    reached.add(node)
                    waiting += node.users
            # a write into a shared storage makes every value of that storage depend on what was written
            dirty = {key for n in reached for key in n.meta.get("writes", ())}
            roots = {n for n in self.graph.nodes if n.meta.get("storage") in dirty and n.op != "placeholder"}
        return reached

    def _is_root(self, node: fx.Node, limit: float) -> bool:
        if node.op in ("call_module", "output"):
            return True
        if node.op == "placeholder":
            return node.meta["storage"] in self.writers or bool(node.meta["spec"].requires_grad)
        if node.op == "get_attr":
            written = node.meta.get("storage") in self.writers
            return node.meta["spec"] is None or node.target in self.parameters or written
        return bool(node.meta.get("random")) or node.meta.get("flops", 0) > limit

    def is_cheap(self, node: fx.Node) -> bool:
        return node not in self.expensive

    @cached_property
    def live(self) -> list[list[fx.Node]]:
        """For each position, the expensive values made before it and used after it, in the order they were made."""
        last: dict[fx.Node, int] = {}
        for node in self.steps:
            for source in node.all_input_nodes:
                if source in self.index:
                    last[source] = self.index[node]
        crossing: list[list[fx.Node]] = []
        alive: list[fx.Node] = []
        for i, node in enumerate(self.steps):
            if last.get(node, i) > i and not self.is_cheap(node):
                alive.append(node)
            alive = [n for n in alive if last[n] > i]
            crossing.append(list(alive))
        return crossing

    def remade(self, node: fx.Node, position: int) -> list[fx.Node]:
        """The cheap steps to run again so that a stage after `position` has `node`, in program order."""
        needed: set[fx.Node] = set()
        pending = [node]
        while pending:
            value = pending.pop()
            if value in needed or value not in self.index:
                continue
            needed.add(value)
            pending += value.all_input_nodes
            writers = self.writers.get(value.meta.get("storage") or -1, [])
            pending += [w for w in writers if self.index.get(w, position + 1) <= position]
        return sorted(needed, key=self.index.__getitem__)


def liveness(graph: fx.Graph, model: nn.Module) -> Liveness:
    """The liveness of a captured graph, computed once."""
    if graph not in _known:
        _known[graph] = Liveness(graph, model)
    return _known[graph]
