"""An fx graph as a networkx graph."""

from __future__ import annotations

import networkx as nx
import torch
from torch import fx, nn

from lpcompile.passes.graph.dataflow import dataflow


class Diamond(nn.Module):
    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        left, right = x.relu(), x.tanh()
        return left + right


def test_edges_go_from_a_value_to_what_reads_it() -> None:
    graph = fx.symbolic_trace(Diamond()).graph
    flow = dataflow(graph)
    names = {(a.name, b.name) for a, b in flow.edges}
    assert names == {("x", "relu"), ("x", "tanh"), ("relu", "add"), ("tanh", "add"), ("add", "output")}
    assert list(flow) == list(graph.nodes), "a value that nobody reads is a node too"


def test_it_answers_what_networkx_can_ask() -> None:
    nodes = {n.name: n for n in fx.symbolic_trace(Diamond()).graph.nodes}
    flow = dataflow(nodes["x"].graph)
    assert nx.ancestors(flow, nodes["add"]) == {nodes["x"], nodes["relu"], nodes["tanh"]}
    assert nx.immediate_dominators(flow, nodes["x"])[nodes["add"]] is nodes["x"]
