"""Layers and parts of forward that a model skips at random, as switches in the graph.

    for layer in self.layers:
        if self.training and torch.rand([]) < self.layerdrop:
            continue
        x = layer(x)

Python reads the drawn value, so one recording has one outcome. Recordings in which every second layer is skipped say
what a skipped layer is replaced by: each layer becomes one node, `switch(flag, ...)`, which runs it or hands on that
value. Where more is skipped than one layer (a branch and its sum), each step of it is `Switched`, and so are the steps
of either branch where the outcomes do different things (`merging` learns them, `switched_graph` writes them). The draws
stay where they are, so the graph draws as the model does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import fx

MOST_READS = 512  # of one forward: more are a loop that goes on for as long as it is drawn


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


def blocks(parts: list[list[fx.Node]], paths: list[str]) -> list[str]:
    """The modules that run or not after each read, from the steps that do; a part of forward that is more than one
    module is none of them."""
    found = []
    for extra, path in zip(parts, paths, strict=True):
        prefix = f"{path}." if path else ""
        inner = {str(n.meta["path"]).removeprefix(prefix) for n in extra if str(n.meta["path"]).startswith(prefix)}
        names = [p.split(".") for p in inner]
        depth = 0
        while names and all(len(n) > depth and n[depth] == names[0][depth] for n in names):
            depth += 1
        if extra and len(inner) == len({n.meta["path"] for n in extra}) and depth > 0:
            found.append(prefix + ".".join(names[0][:depth]))
    return found
