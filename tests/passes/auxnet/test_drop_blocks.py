"""The graph of a stage without its dropped blocks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import lpcompile
from lpcompile.passes.auxnet.drop_blocks import (
    boundary_values,
    follow,
    is_convertible,
    needed,
    rewrite,
    shortcuts,
    writers,
)
from lpcompile.passes.graph.residual import residuals
from lpcompile.passes.split.split import Stage
from tests.passes.auxnet.small import stack, stages


def test_dropout_and_stochastic_depth_are_left_out() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.Dropout(0.5), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    )
    program = lpcompile.parallelize(
        model, 2, example_inputs=torch.randn(2, 5, 8), cost="flops", gate=False, aux_budget=0.9
    )
    aux = program.auxnets[0].train()
    x = torch.randn(2, 5, 8)
    assert torch.equal(aux(x), aux(x))


def graph_of(stage: Stage) -> fx.Graph:
    return stage._lp_graphs[True]


def run(graph: fx.Graph, stage: Stage, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = fx.GraphModule(stage, graph)(x)
    return out


def test_a_dropped_block_is_its_shortcut() -> None:
    model, x = stack(), torch.randn(2, 4)
    stage = stages(model, x, "add_2")[0]
    graph = graph_of(stage)
    blocks = residuals(graph, stage)
    assert len(blocks) == 3
    left = rewrite(graph, stage, boundary_values(graph, 1), blocks[:2])
    assert [str(n.target) for n in left.nodes if n.op == "call_module"] == ["0", "3.a", "3.act", "3.b"]
    assert torch.equal(run(left, stage, x), model[3](model[0](x)))
    assert len(residuals(graph, stage)) == 3  # the stage's own graph is as it was


def test_replacements_are_followed_to_their_end() -> None:
    stage = stages(stack(), torch.randn(2, 4), "add_2")[0]
    blocks = residuals(graph_of(stage), stage)
    instead = shortcuts(graph_of(stage), stage, blocks)
    assert str(follow(blocks[2].node, instead).target) == "0"


def test_only_what_the_values_depend_on_still_runs() -> None:
    stage = stages(stack(), torch.randn(2, 4), "add_2")[0]
    graph = graph_of(stage)
    blocks = residuals(graph, stage)
    running = needed(boundary_values(graph, 1), shortcuts(graph, stage, blocks), writers(graph))
    assert sorted(n.op for n in running) == ["call_module", "placeholder"]


class Relus(nn.Module):
    """A ReLU after a block that ends in one, with max-pooling between: needless without the block."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.pool, self.act = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.MaxPool2d(2), nn.ReLU()
        self.end = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.act(self.a(x)))
        out: torch.Tensor = self.end(F.relu(x + self.b(x)))
        return out


def test_a_relu_of_a_relu_is_left_out() -> None:
    x = torch.randn(2, 3, 4, 4)
    stage = stages(Relus(), x, "relu")[0]
    graph = graph_of(stage)
    values, blocks = boundary_values(graph, 1), residuals(graph, stage)
    assert any(n.target is F.relu for n in rewrite(graph, stage, values, ()).nodes)
    assert not any(n.target is F.relu for n in rewrite(graph, stage, values, blocks).nodes)


class Writes(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.a, self.b, self.again = nn.Linear(4, 4), nn.Linear(4, 4), again

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        view = x.view(-1)
        y = x.mul_(2)
        out: torch.Tensor = self.b(y) + (view.sum() if self.again else 0)
        return out


@pytest.mark.parametrize("again", [True, False])
def test_a_write_in_place_makes_a_new_tensor_unless_the_old_one_is_read_again(again: bool) -> None:
    model, x = Writes(again), torch.randn(2, 4)
    graph = lpcompile.capture(model, x)._lp_graphs[True]
    write = next(n for n in graph.nodes if n.target == "mul_")
    assert is_convertible(write, graph) is not again and bool(writers(graph)) is again
    copied = rewrite(graph, model, boundary_values(graph, 1), ())
    targets = {n.target for n in copied.nodes if n.op == "call_method"}
    assert targets & {"mul", "mul_"} == {"mul_" if again else "mul"}
    assert torch.equal(fx.GraphModule(model, copied)(x), model(x))
