"""Graph networks: one program for every number of nodes and edges."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import InputError
from lpcompile.zoo.check import differences


class GraphNet(nn.Module):
    """Means over neighbours; it reads both numbers, as torch_geometric does."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(5, 16)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(8))

    def mean(self, x, edges):
        source, target = edges
        count = x.new_zeros(x.size(0)).scatter_add_(0, target, x.new_ones(target.size(0)))
        return x.new_zeros(x.size(0), 16).index_add(0, target, x[source]) / count.clamp(min=1)[:, None]

    def forward(self, x, edges, weight=None):
        x = self.lift(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(self.mean(x, edges)))
        return x


class Loops(GraphNet):
    """It adds a loop to every node: a size that follows nodes and edges."""

    def mean(self, x, edges):
        loops = torch.arange(x.size(0))
        return super().mean(x, torch.cat([edges, torch.stack([loops, loops])], 1))


class Weighted(GraphNet):
    """With a weight for each edge."""

    def forward(self, x, edges, weight=None):
        return super().forward(x, edges) + x.new_zeros(x.size(0)).index_add(0, edges[1], weight)[:, None]


class Fixed(GraphNet):
    """A vector for each node: their number cannot change."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.zeros(9, 16))

    def forward(self, x, edges, weight=None):
        return super().forward(x, edges) + self.own


def graph(nodes, edges, weighted=False, seed=1):
    draw = torch.Generator().manual_seed(seed)
    found = (torch.randn(nodes, 5, generator=draw), torch.randint(0, nodes, (2, edges), generator=draw))
    return (*found, torch.rand(edges, generator=draw)) if weighted else found


SIZES = [(9, 18), (9, 31), (25, 18), (4, 6), (12, 12), (2, 40)]


@pytest.mark.parametrize("kind", [GraphNet, Weighted])
def test_one_program_runs_at_every_number_of_nodes_and_edges(kind, tmp_path):
    torch.manual_seed(0)
    model, weighted = kind(), kind is Weighted
    program = lpcompile.parallelize(model, K=3, example_inputs=graph(9, 18, weighted), cost="flops", method="bp")
    assert not program.plan.batch_free and program.plan.imbalance < 1.5
    assert "any number of nodes and edges" in program.plan.notes[0]
    for nodes, edges in SIZES:
        assert differences(model, program, (graph(nodes, edges, weighted), {})) == []
    program.emit(tmp_path)
    loaded = lpcompile.load(tmp_path)
    given = graph(25, 40, weighted)
    assert torch.equal(loaded(*given), model(*given))


def test_every_call_checks_that_the_edges_are_as_many_everywhere():
    model = Weighted()
    program = lpcompile.parallelize(model, K=2, example_inputs=graph(9, 18, True), cost="flops")
    x, edges, weight = graph(12, 30, True)
    with pytest.raises(InputError, match=r"'weight' is float32\[29\] now but .* float32\[E\] .*E edges"):
        program(x, edges, weight[1:])


@pytest.mark.parametrize("method", ["bp", "stream", "penalty", "multiplier"])
def test_steps_take_graphs_of_any_size(method):
    torch.manual_seed(0)
    model = GraphNet()
    program = lpcompile.parallelize(model, K=3, example_inputs=graph(9, 18), cost="flops", method=method)
    sgd = lambda parameters: torch.optim.SGD(parameters, 0.01)  # noqa: E731
    trainer = program.trainer(lambda out, y: (out - y[:, None]).square().mean(), optimizer=sgd)
    for seed, (nodes, edges) in enumerate(SIZES):
        assert trainer.step(graph(nodes, edges, seed=seed), torch.zeros(nodes))["loss"] > 0


def test_sizes_of_nodes_and_edges_together_need_no_integer():
    model = Loops()
    program = lpcompile.parallelize(model, K=3, example_inputs=graph(9, 18), cost="flops", method="bp")
    assert "a number follows both" in program.plan.notes[0]
    with pytest.raises(InputError, match="compile again"):
        program(*graph(10, 18))


def test_a_number_of_nodes_that_the_model_fixes_stays():
    program = lpcompile.parallelize(Fixed(), K=3, example_inputs=graph(9, 18), cost="flops", method="bp")
    assert program.plan.notes[0].startswith("the graph is tied to batch size 9")
    with pytest.raises(InputError, match="compile again"):
        program(*graph(10, 18))
