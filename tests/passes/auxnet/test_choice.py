"""Which blocks are kept, and with how many channels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.passes.auxnet.derive import derive
from lpcompile.passes.graph.residual import residuals
from lpcompile.program import Program
from tests.passes.auxnet.families import FAMILIES, boundaries, compiled


@pytest.fixture(scope="module")
def resnet110() -> Program:
    """Cut where the number of channels changes."""
    return lpcompile.parallelize(
        models.resnet110(), 3, example_inputs=torch.randn(2, 3, 32, 32), cost="flops", gate=False,
        pins={"cut": ["layer1", "layer2"]}, aux_budget=0.172,
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
