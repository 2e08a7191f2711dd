"""Adapters between any two shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from tests.passes.auxnet.families import boundaries


class Plain(nn.Module):
    """No residual blocks at all: images, then tokens, then features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(*[nn.Conv2d(c, d, 3, s, 1) for c, d, s in [(3, 8, 1), (8, 16, 2), (16, 16, 1)]])
        self.tokens = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24))
        self.head = nn.Sequential(nn.Linear(24 * 25, 40), nn.ReLU(), nn.Linear(40, 40), nn.Linear(40, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(self.conv(x).flatten(2).transpose(1, 2))
        out: torch.Tensor = self.head(x.flatten(1))
        return out


@pytest.mark.parametrize("K", [2, 3, 4, 5])
def test_where_nothing_can_be_dropped_an_adapter_fits_any_two_shapes(K: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9)
    program = lpcompile.parallelize(Plain(), K, example_inputs=x, cost="flops", gate=False, method="penalty")
    assert all(b.aux and b.aux.kind == "adapter" for b in program.plan.boundaries)
    for batch in (2, 3):
        for lams, xs in boundaries(program, [torch.randn(batch, 3, 9, 9)]):
            assert [(t.shape, t.dtype) for t in lams] == [(t.shape, t.dtype) for t in xs]
    assert all(next(a.parameters(), None) is not None for a in program.auxnets)
