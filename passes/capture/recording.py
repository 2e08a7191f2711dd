"""What comes of recording a forward once, and why a draw in it is refused."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from lpcompile.passes.capture.record.recorder import Recorder
from lpcompile.passes.capture.switches import Branches
from lpcompile.passes.graph.tree import Tree

BRANCHES = "the branches that follow are more than parts that run or not, or one of two"
PYTHONS = "forward draws from Python's or numpy's random generator"
MIXED = 4  # recordings with outcomes at random, where both do something


class Again(Exception):
    """Record once more, the same way."""


@dataclass(frozen=True)
class Recording:
    graph: fx.Graph
    tree: Tree
    constants: dict[str, torch.Tensor]
    reads_training: bool = True  # whether evaluation may be another graph
    reads_sizes: bool = True  # whether another batch may be another graph in ways that two sizes do not show
    calls: tuple[fx.Node, ...] = ()  # all calls as they were recorded; those without effect are erased


@dataclass(frozen=True)
class Outcome:
    recorder: Recorder
    tree: Tree
    branches: Branches

    @property
    def graph(self) -> fx.Graph:
        return self.recorder.graph

    @property
    def drawn(self) -> tuple[fx.Graph, Branches]:
        return self.graph, self.branches
