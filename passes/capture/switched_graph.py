"""Writes random branches into a recording as switches, from what `merging` has learnt of them."""

from __future__ import annotations

import operator
from itertools import takewhile
from typing import Any

from torch import fx

from lpcompile.passes.capture.merging import Learned
from lpcompile.passes.capture.switches import Branches, NotASwitch, segments
from lpcompile.passes.graph.calls import Switched, as_recorded, call_method, switch

Recorded = tuple[fx.Graph, Branches]


class SwitchWriter:
    """Rewrites a recording `full`, in place. `bare` lends the steps of the other outcome; it may be left out if that
    has none."""

    def __init__(self, learned: Learned, full: Recorded, bare: Recorded | None) -> None:
        self.learned, (self.graph, self.branches) = learned, full
        self.nodes = learned.nodes(self.graph, bare[0] if bare else None)
        self.parts = segments(*full)[1:]
        self.rest = segments(*bare)[1:] if bare else [[] for _ in self.parts]
        self.instead = {self.nodes[a]: self.nodes[b] for a, b in learned.pairs if b < len(self.nodes)}
        self.twins = {self.nodes[a]: self.nodes[b] for a, b in learned.twins} if bare else {}
        self.now: dict[fx.Node, fx.Node] = {}  # the node in the graph that holds the value of a step

    def write(self) -> None:
        for k, (ours, theirs) in enumerate(self.learned.arms):
            if ours or theirs:  # else it does the same either way, as `if keep[i] or not self.training` in evaluation
                self._write(k, self.parts[k][:ours], self.rest[k][:theirs])

    def _write(self, k: int, ours: list[fx.Node], theirs: list[fx.Node]) -> None:
        flag, path, outcome = self.branches.flags[k], self.branches.paths[k], self.learned.outcome
        both = {b: a for a in ours if (b := self.instead.get(a)) in theirs}  # made by either arm
        copies: dict[fx.Node, fx.Node] = {}
        place = self.nodes[self.nodes.index(self.branches.after[k]) + 1]
        name = _name_of(theirs, path) if theirs else ""
        for step in theirs:
            copied = self._copy(step, place, copies)
            other = self.instead.get(step) if step not in both else None
            copies[step] = self._step(copied, flag, not outcome, None if other is None else self._value(other, place))
            copies[step].meta.update(part=f"{name} or not", other_arm=True)
        self.now.update(copies)
        for number, where, start in self.learned.starts:
            step = self.nodes[number]
            if self.nodes[start] in copies and step.graph is self.graph:
                _replace(step, where, copies[self.nodes[start]])
        made = self._part(ours, flag, path) if ours else {}
        self.now.update(made)
        self.now.update({b: made[a] for b, a in both.items()})

    def _value(self, step: fx.Node, place: fx.Node) -> fx.Node:
        """The node that holds a step's value outside its arm."""
        if step.graph is not self.graph and step not in self.now:  # a tensor that only the other outcome reads
            with self.graph.inserting_before(place):
                self.now[step] = self.graph.node_copy(step)
        return self.now.get(step, step)

    def _copy(self, step: fx.Node, place: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
        """A step of `bare` in the graph, with the values that it has there."""
        number = self.nodes.index(step)
        starts = {where: self.nodes[s] for n, where, s in self.learned.starts if n == number}
        places = iter(range(len(self.nodes)))

        def value(node: fx.Node) -> fx.Node:
            where = next(places)
            own = starts.get(where, self.twins[node])
            return copies[own] if own in copies else self._value(own, place)

        args, kwargs = fx.map_arg((step.args, dict(step.kwargs)), value)
        with self.graph.inserting_before(place):
            made = self.graph.create_node(step.op, step.target, args, kwargs, step.name)
        made.meta = dict(step.meta)
        return made

    def _part(self, part: list[fx.Node], flag: fx.Node, path: str) -> dict[fx.Node, fx.Node]:
        """Switch the steps after one read; gives the new node of each."""
        graph, outcome = self.graph, self.learned.outcome
        instead = {n: self._value(self.instead[n], n) for n in part if n in self.instead}
        results, call = [*instead], part[0]
        checks = [n for n in part[1:] if n.target is as_recorded]
        others = [n for n in part[1:] if n not in checks]
        if (
            results
            and call.op == "call_module"
            and all(n.target is operator.getitem and n.args[0] in (call, *checks) for n in others)
        ):
            for check in checks:
                check.replace_all_uses_with(call)
                graph.erase_node(check)
            return {call: self._switch(call, flag, outcome, _otherwise(call, results, instead))}
        name = _name_of(part, path)
        made = {n: self._step(n, flag, outcome, instead.get(n)) for n in part}
        for node in made.values():
            node.meta["part"] = name
        return made

    def _step(self, node: fx.Node, flag: fx.Node, outcome: bool, otherwise: fx.Node | None) -> fx.Node:
        """One step of a part. What nothing outside the part reads has no other value."""
        if node.op == "call_module":
            return self._switch(node, flag, outcome, otherwise)
        named = node.op == "call_method"
        function = Switched(call_method if named else node.target)
        given = (str(node.target), *node.args) if named else node.args
        with self.graph.inserting_before(node):
            given = (flag, outcome, otherwise, *given)
            made = self.graph.create_node("call_function", function, given, dict(node.kwargs), node.name)
        made.meta = dict(node.meta, unswitched=(node.op, node.target))
        node.replace_all_uses_with(made)
        self.graph.erase_node(node)
        return made

    def _switch(self, call: fx.Node, flag: fx.Node, outcome: bool, otherwise: Any) -> fx.Node:
        graph = self.graph
        with graph.inserting_before(call):
            module = graph.get_attr(str(call.target))
            module.meta.update(varies=True, spec=None, state=str(call.target))
            given = (flag, outcome, otherwise, module, *call.args)
            made = graph.call_function(switch, given, dict(call.kwargs))
        made.meta = dict(call.meta)
        call.replace_all_uses_with(made)
        graph.erase_node(call)
        return made


def _replace(step: fx.Node, where: int, value: fx.Node) -> None:
    """Let one argument of a step, by its place, be another value."""
    places = iter(range(len(step.graph.nodes)))
    args, kwargs = fx.map_arg((step.args, dict(step.kwargs)), lambda n: value if next(places) == where else n)
    step.args, step.kwargs = args, kwargs


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
