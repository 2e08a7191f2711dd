"""Layers and parts of forward that a model skips at random, as switches in the graph.

    for layer in self.layers:
        if self.training and torch.rand([]) < self.layerdrop:
            continue
        x = layer(x)

Python reads the drawn value, so one recording has one outcome. Recordings in which every second layer is skipped say
what a skipped layer is replaced by: each layer becomes one node, `switch(flag, ...)`, which runs it or hands on that
value. Where more is skipped than one layer (a branch and its sum), each step of it is `Switched`. The draws stay where
they are, so the graph draws as the model does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from torch import fx

from lpcompile.passes.graph.calls import Switched, as_recorded, call_method, switch


class NotASwitch(Exception):
    """The outcomes differ in more than layers that are run or skipped."""


@dataclass
class Branches:
    """The reads of drawn values in one recording: what Python was told, the nodes that were read, and when."""

    answer: Callable[[int], bool]
    flags: list[fx.Node] = field(default_factory=list)
    after: list[fx.Node] = field(default_factory=list)  # the last node before each read
    paths: list[str] = field(default_factory=list)  # the module that read it

    def read(self, flag: fx.Node, path: str) -> bool:
        self.flags.append(flag)
        self.after.append(next(iter(reversed(flag.graph.nodes))))
        self.paths.append(path)
        return self.answer(len(self.flags) - 1)


def is_drawn(node: fx.Node) -> bool:
    """Whether a value is made of random draws and constants alone."""
    pending, drawn = [node], False
    while pending:
        value = pending.pop()
        if value.op in ("placeholder", "get_attr", "call_module"):
            return False
        drawn = drawn or bool(value.meta.get("random"))
        pending += value.all_input_nodes
    return drawn


def segments(graph: fx.Graph, branches: Branches) -> list[list[fx.Node]]:
    """The steps before the first read, and those after each."""
    found: list[list[fx.Node]] = [[]]
    ends = iter([*branches.after, None])
    end = next(ends)
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            found[-1].append(node)
        while node is end:
            found.append([])
            end = next(ends)
    return found


def blocks(full: list[list[fx.Node]], bare: list[list[fx.Node]], paths: list[str]) -> list[str]:
    """The modules that run or not after a read, from recordings in which all do and none does; a part of forward that
    is more than one module is none of them."""
    found = []
    for whole, rest, path in zip(full[1:], bare[1:], paths, strict=True):
        extra = whole[: len(whole) - len(rest)]
        prefix = f"{path}." if path else ""
        parts = {str(n.meta["path"]).removeprefix(prefix) for n in extra if str(n.meta["path"]).startswith(prefix)}
        names = [p.split(".") for p in parts]
        depth = 0
        while names and all(len(n) > depth and n[depth] == names[0][depth] for n in names):
            depth += 1
        if extra and len(parts) == len({n.meta["path"] for n in extra}) and depth > 0:
            found.append(prefix + ".".join(names[0][:depth]))
    return found


class Merger:
    """Learns from recordings with some layers skipped what stands for the results of a skipped layer."""

    def __init__(self, full: fx.Graph, branches: Branches) -> None:
        self.graph, self.branches = full, branches
        self.parts = segments(full, branches)
        self.order = {n: i for i, n in enumerate(full.nodes)}
        self.instead: dict[fx.Node, fx.Node] = {}
        self.lengths: dict[int, int] = {}  # steps that are skipped after each read

    def learn(self, other: fx.Graph, branches: Branches, skipped: set[int]) -> None:
        """Align another recording; raises `NotASwitch` where it is not the full one without the skipped layers."""
        theirs = segments(other, branches)
        if len(theirs) != len(self.parts):
            raise NotASwitch("the number of draws differs")
        twin: dict[fx.Node, fx.Node] = {}
        state = {str(n.target): n for n in self.graph.nodes if n.op in ("placeholder", "get_attr")}
        for node in other.nodes:
            if node.op in ("placeholder", "get_attr"):
                if str(node.target) not in state:
                    raise NotASwitch("it reads other tensors")
                twin[node] = state[str(node.target)]
        left_out: set[fx.Node] = set()
        for k, (mine, their) in enumerate(zip(self.parts, theirs, strict=True), -1):
            extra = len(mine) - len(their)
            if (k in skipped) != (extra > 0) or extra < 0:
                raise NotASwitch("a skipped layer leaves other steps behind")
            left_out.update(mine[:extra])
            if k in skipped and self.lengths.setdefault(k, extra) != extra:
                raise NotASwitch("what is skipped depends on other draws")
            for a, b in zip(mine[extra:], their, strict=True):
                self._same(a, b, twin, left_out)
                twin[b] = a
        mine_out, their_out = (next(n for n in reversed(g.nodes) if n.op == "output") for g in (self.graph, other))
        self._same(mine_out, their_out, twin, left_out)

    def _same(self, a: fx.Node, b: fx.Node, twin: dict[fx.Node, fx.Node], left_out: set[fx.Node]) -> None:
        if a.op != b.op or a.target != b.target:
            raise NotASwitch(f"{a.format_node()} against {b.format_node()}")
        if str(fx.map_arg((a.args, a.kwargs), lambda n: None)) != str(fx.map_arg((b.args, b.kwargs), lambda n: None)):
            raise NotASwitch(f"{a.format_node()} against {b.format_node()}")
        mine, theirs = list[fx.Node](), list[fx.Node]()
        fx.map_arg((a.args, a.kwargs), mine.append)
        fx.map_arg((b.args, b.kwargs), theirs.append)
        if len(mine) != len(theirs):
            raise NotASwitch(f"{a.format_node()} against {b.format_node()}")
        for x, y in zip(mine, theirs, strict=True):
            other = twin[y]
            while x in left_out and x is not other:
                if self.instead.setdefault(x, other) is not other and self.instead[x] not in left_out:
                    raise NotASwitch(f"{x} is replaced by different values")
                x = self.instead[x]
            if x is not other:
                raise NotASwitch(f"{x} is used where the other uses {y}")

    def learned(self, outcome: bool) -> Learned:
        """A layer runs where its flag is `outcome`."""
        pairs = tuple((self.order[a], self.order[b]) for a, b in self.instead.items())
        return Learned(
            outcome, len(self.order), pairs, tuple(self.lengths.get(k, 0) for k in range(len(self.parts) - 1))
        )


@dataclass(frozen=True)
class Learned:
    """What stands for each result of a skipped layer, by the numbers of their nodes in a recording of all layers."""

    outcome: bool
    size: int
    pairs: tuple[tuple[int, int], ...]
    lengths: tuple[int, ...]  # 0 for a read after which both outcomes do the same

    def apply(self, graph: fx.Graph, branches: Branches) -> None:
        """Rewrite a recording in which all layers ran, in place."""
        nodes: list[fx.Node] = list(graph.nodes)
        if len(nodes) != self.size:
            raise NotASwitch(f"{len(nodes)} nodes against {self.size}")
        instead = {nodes[a]: nodes[b] for a, b in self.pairs}
        parts = segments(graph, branches)[1:]
        for flag, part, length, path in zip(branches.flags, parts, self.lengths, branches.paths, strict=True):
            if not length:  # it does the same either way, as `if keep[i] or not self.training` in evaluation
                continue
            made = self._part(graph, flag, part[:length], instead, path)
            instead = {made.get(a, a): made.get(b, b) for a, b in instead.items()}

    def _part(
        self, graph: fx.Graph, flag: fx.Node, part: list[fx.Node], instead: dict[fx.Node, fx.Node], path: str
    ) -> dict[fx.Node, fx.Node]:
        """Switch the steps after one read; gives the new node of each."""
        results = [n for n in part if n in instead]
        if not results:
            raise NotASwitch("a part without a result")
        call = part[0]
        checks = [n for n in part[1:] if n.target is as_recorded]
        others = [n for n in part[1:] if n not in checks]
        if call.op == "call_module" and all(
            n.target is operator.getitem and n.args[0] in (call, *checks) for n in others
        ):
            for check in checks:
                check.replace_all_uses_with(call)
                graph.erase_node(check)
            return {call: self._switch(graph, call, flag, _otherwise(call, results, instead))}
        name = _name_of(part, path)
        made = {n: self._step(graph, n, flag, instead.get(n)) for n in part}
        for node in made.values():
            node.meta["part"] = name
        return made

    def _step(self, graph: fx.Graph, node: fx.Node, flag: fx.Node, otherwise: fx.Node | None) -> fx.Node:
        """One step of a part. What nothing outside the part reads has no other value."""
        if node.op == "call_module":
            return self._switch(graph, node, flag, otherwise)
        named = node.op == "call_method"
        function = Switched(call_method if named else node.target)
        given = (str(node.target), *node.args) if named else node.args
        with graph.inserting_before(node):
            given = (flag, self.outcome, otherwise, *given)
            made = graph.create_node("call_function", function, given, dict(node.kwargs), node.name)
        made.meta = dict(node.meta, unswitched=(node.op, node.target))
        node.replace_all_uses_with(made)
        graph.erase_node(node)
        return made

    def _switch(self, graph: fx.Graph, call: fx.Node, flag: fx.Node, otherwise: Any) -> fx.Node:
        with graph.inserting_before(call):
            module = graph.get_attr(str(call.target))
            module.meta.update(varies=True, spec=None, state=str(call.target))
            given = (flag, self.outcome, otherwise, module, *call.args)
            made = graph.call_function(switch, given, dict(call.kwargs))
        made.meta = dict(call.meta)
        call.replace_all_uses_with(made)
        graph.erase_node(call)
        return made


def _name_of(part: list[fx.Node], path: str) -> str:
    """The module that the layers of a part have in common, below the one that skips it."""
    prefix = f"{path}." if path else ""
    paths = [str(n.meta["path"]) for n in part]
    below = [p.removeprefix(prefix).split(".") for p in paths if p.startswith(prefix) and p != path]
    common = [names[0] for names in takewhile(lambda names: len(set(names)) == 1, zip(*below, strict=False))]
    return prefix + ".".join(common) if common else part[0].name


def _otherwise(call: fx.Node, results: list[fx.Node], instead: dict[fx.Node, fx.Node]) -> Any:
    """The value of a skipped call: a tensor, or a tuple of those parts that are used."""
    if call in instead:
        return instead[call]
    for node in results:
        if node.target is not operator.getitem or node.args[0] is not call or not isinstance(node.args[1], int):
            raise NotASwitch("the result of a layer is taken apart in an unknown way")
    places: dict[Any, fx.Node] = {n.args[1]: instead[n] for n in results}
    return tuple(places.get(i) for i in range(max(places) + 1))
