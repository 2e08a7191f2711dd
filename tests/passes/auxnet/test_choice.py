"""Which blocks are kept, and with how many channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.passes.auxnet.choice import BUDGET_TOLERANCE, Choice, by_distance, choose, even
from lpcompile.passes.auxnet.derive import derive, flops_of
from lpcompile.passes.graph.residual import residuals
from lpcompile.program import Program
from tests.passes.auxnet.families import FAMILIES, boundaries, compiled
from tests.passes.auxnet.small import stack, stages


@pytest.fixture(scope="module")
def resnet110() -> Program:
    """Cut where the number of channels changes."""
    return lpcompile.parallelize(
        models.resnet110(), 3, example_inputs=torch.randn(2, 3, 32, 32), cost="flops", gate=False,
        method="penalty", pins={"cut": ["layer1", "layer2"]}, aux_budget=0.172,
    )  # fmt: skip


def test_resnet110_in_three_stages_gets_the_papers_resnet20(resnet110: Program) -> None:
    """The paper uses ResNet-20, three blocks for each of the three groups of ResNet-110: a sixth of its blocks."""
    resnet20 = models.resnet20()
    assert shapes(resnet110.auxnets[0]) == shapes(nn.ModuleList([resnet20.conv1, resnet20.bn1, resnet20.layer1]))
    # the block that changes the shape is a little cheaper than the others
    assert shapes(derive(resnet110.stages[1], budget=0.16)) == shapes(resnet20.layer2)


def shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return sorted(tuple(p.shape) for p in module.parameters())


def test_kept_blocks_are_spread_evenly(resnet110: Program) -> None:
    aux = resnet110.plan.boundaries[0].aux
    assert aux is not None and aux.kept == ("layer1.3", "layer1.9", "layer1.15")
    second = resnet110.plan.boundaries[1].aux
    assert second is not None and "layer2.0" in second.kept  # it changes the shape


@pytest.mark.parametrize("init", ["fresh", "copy"])
def test_a_stem_that_is_too_dear_is_thinned(init: str) -> None:
    """ResNet-18 in four stages: the stem alone is a fifth of stage 0, and its channels are the stream."""
    program = compiled("ResNet with projections", 4, aux_init=init)
    aux = program.plan.boundaries[0].aux
    assert aux is not None and aux.share <= 0.11 and any(name.startswith("conv1 ") for name in aux.thinned)
    x = FAMILIES["ResNet with projections"][1]["example_inputs"]
    for lams, xs in boundaries(program, [x]):
        assert [t.shape for t in lams] == [t.shape for t in xs]


def test_a_shared_layer_is_a_block_each_time_it_runs() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layer = nn.Linear(4, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for _ in range(8):
                x = x + self.layer(x)
            return x

    program = lpcompile.parallelize(
        Shared(), 2, example_inputs=torch.randn(2, 4), cost="flops", gate=False, method="bp"
    )
    groups = [b.group for b in residuals(program.stages[0]._lp_graphs[True], program.stages[0])]
    assert len(groups) == len(set(groups)) >= 3


def chosen(budget: float, model: nn.Module | None = None, **options: Any) -> Choice | None:
    """The choice for the first stage of a stem and four blocks, by FLOPs."""
    stage = stages(model or stack(5), torch.randn(2, 4), "add_3")[0]
    graph = stage._lp_graphs[True]
    costs = {n.name: sum(flops_of(n)) for n in graph.nodes}
    found = choose(stage, graph, costs, budget, **{"tied": False, "init": "fresh", **options})
    if found is not None and budget >= 0.1:
        assert found.cost <= budget * sum(costs.values()) * (1 + 2 * BUDGET_TOLERANCE)
    return found


def test_the_whole_budget_keeps_the_whole_stage() -> None:
    found = chosen(1.0)
    assert found is not None and len(found.blocks) == 4
    assert not found.dropped and not found.thinned and not found.ranks and not found.zeroed


@pytest.mark.parametrize(("budget", "dropped"), [(0.8, 1), (0.52, 2), (0.3, 3)])
def test_whole_blocks_are_kept_and_one_more_with_fewer_channels(budget: float, dropped: int) -> None:
    found = chosen(budget)
    assert found is not None and len(found.dropped) == dropped - bool(found.partial)
    assert bool(found.partial) == bool(found.thinned)
    narrow = [sizes[0] for sizes in found.thinned.values() if sizes[0] is not None]
    assert all(size < 32 for size in narrow)


def test_tied_layers_are_never_thinned() -> None:
    for budget in (0.05, 0.3, 0.8):
        found = chosen(budget, tied=True)
        assert found is not None and not found.thinned and not found.ranks


def test_a_consistent_start_names_what_silences_the_dropped_branches() -> None:
    found = chosen(0.52, init="consistent")
    assert found is not None and found.zeroed
    groups = {b.group for b in (*found.dropped, *found.partial)}
    assert {name.rpartition(".b.")[0] for name in found.zeroed} == groups


def test_parameters_of_other_stages_are_not_zeroed() -> None:
    model = stack(5)
    shared = [id(p) for p in model[2].parameters()]
    found = chosen(0.3, model, init="consistent", shared=shared)
    assert found is not None and "2" not in {b.group for b in found.blocks}
    assert not any(name.startswith("2.") for name in found.zeroed)


def test_a_stage_without_blocks_has_no_choice() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    stage = stages(model, torch.randn(2, 4), "_1")[0]
    graph = stage._lp_graphs[True]
    costs = {n.name: sum(flops_of(n)) for n in graph.nodes}
    assert choose(stage, graph, costs, 0.1, tied=False, init="fresh") is None


def test_something_is_left_to_learn_whatever_the_budget() -> None:
    found = chosen(0.0)
    assert found is not None and any(n.op == "call_module" for n in found.graph.nodes)


@pytest.mark.parametrize(("count", "kept"), [(1, "d"), (2, "bf"), (3, "bdf"), (7, "abcdefg")])
def test_items_are_taken_evenly(count: int, kept: str) -> None:
    assert "".join(even("abcdefg", count)) == kept


def test_the_farthest_items_come_first() -> None:
    assert by_distance("abcdefg", "d") == ["b", "f", "a", "c", "e", "g"]
    assert by_distance("abc", "abc") == [] and by_distance("abc", "")[0] == "b"
