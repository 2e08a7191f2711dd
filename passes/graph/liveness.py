"""Liveness: the values that cross each position of a graph. Cheap values are recomputed in each stage instead."""

from __future__ import annotations

from functools import cached_property

from torch import fx, nn

CHEAP_SHARE = 0.01  # a value is cheap to recompute below this share of the model's forward FLOPs


class Liveness:
    """Program order of a captured graph: `steps[i]` is the i-th computing node, position p lies after step p.

    Inputs, parameters, buffers and sizes are available in every stage and are not steps.
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
        self._values: dict[int, list[fx.Node]] = {}  # by storage, as `writers`
        for node in graph.nodes:
            for storage in node.meta.get("writes", ()):
                self.writers.setdefault(storage, []).append(node)
            if node.op != "placeholder":
                self._values.setdefault(node.meta.get("storage"), []).append(node)

    @cached_property
    def expensive(self) -> set[fx.Node]:
        """Nodes that must run once: layers, random draws, parameters, heavy operations, and everything after them."""
        import networkx as nx

        limit = CHEAP_SHARE * sum(n.meta.get("flops", 0) for n in self.steps)
        start = "expensive roots"
        depends = nx.DiGraph((source, n) for n in self.graph.nodes for source in n.all_input_nodes)
        depends.add_edges_from((start, n) for n in self.graph.nodes if self._is_root(n, limit))
        for storage, writers in self.writers.items():  # every value of a storage depends on what is written into it
            depends.add_edges_from((writer, storage) for writer in writers)
            depends.add_edges_from((storage, value) for value in self._values.get(storage, ()))
        return {node for node in nx.descendants(depends, start) if isinstance(node, fx.Node)}

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
        """For each position, the expensive values made before it and used after it, in the order they were made.

        A position with one live value is a dominator of the outputs; this sweep also names the values that are live
        at all other positions, for the reasons of illegal cuts.
        """
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
        """The cheap steps that a stage after `position` recomputes to have `node`, in program order."""
        # By hand: which writes count depends on `position`, so networkx would search a filtered view (54 ms against
        # 0.8 ms for the 215 cheap values of a DeBERTa).
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
    """The liveness of a captured graph, computed once. It is kept on the graph, so that it goes with the graph."""
    if "_lp_liveness" not in graph.__dict__:
        graph.__dict__["_lp_liveness"] = Liveness(graph, model)
    found: Liveness = graph.__dict__["_lp_liveness"]
    return found
