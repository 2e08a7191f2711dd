"""Random branches are written into the graph as switches, each with the steps of its arms."""

import random

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.passes.graph.calls import Switched, switch


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = self.step(layer, x)
        return x

    def step(self, layer, x):
        return x if torch.rand([]) < 0.4 else layer(x)


class Chooses(Skips):
    def step(self, layer, x):
        return layer(x).relu() if random.random() < 0.5 else x * 2


def graph_of(model):
    return lpcompile.capture(model, torch.randn(4, 8)).graph


def test_a_skipped_layer_is_one_switch_that_hands_on_what_came_before():
    graph = graph_of(Skips().train())
    switches = [n for n in graph.nodes if n.target is switch]
    assert [n.meta["path"] for n in switches] == ["layers.0", "layers.1", "layers.2"]
    assert not [n for n in graph.nodes if n.op == "call_module"]
    before = next(n for n in graph.nodes if n.op == "placeholder")
    for node in switches:
        flag, _, otherwise, module, given = node.args
        assert otherwise is given is before and module.target == node.meta["path"] and flag is not before
        before = node


def test_every_step_of_either_arm_runs_in_its_own_outcome_alone():
    graph = graph_of(Chooses().train())
    graph.lint()
    arms = [n for n in graph.nodes if n.target is switch or isinstance(n.target, Switched)]
    outcomes = {bool(n.meta.get("other_arm")): set() for n in arms}
    for node in arms:
        outcomes[bool(node.meta.get("other_arm"))].add(node.args[1])
    assert len(outcomes) == 2 and outcomes[True].isdisjoint(outcomes[False])


@pytest.mark.parametrize("kind", [Skips, Chooses])
def test_what_is_written_computes_what_the_model_does(kind):
    model, x = kind().train(), torch.randn(4, 8)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    for seed in range(8):
        torch.manual_seed(seed), random.seed(seed)
        expected = model(x)
        torch.manual_seed(seed), random.seed(seed)
        assert torch.equal(program(x), expected)
