"""Recurrent layers count as what they multiply: torch's counter has nothing for them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile


class Tagger(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], both: bool) -> None:
        super().__init__()
        self.first = kind(16, 32, batch_first=True, bidirectional=both)
        self.second = kind(64 if both else 32, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)[0])[0])


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_layers_share_the_work_by_their_matrices(kind: type[nn.RNNBase], both: bool) -> None:
    torch.manual_seed(0)
    model, x = Tagger(kind, both), torch.randn(4, 5, 16)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", gate=False)
    expected = 2 * 4 * 5 * sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert 1e9 * sum(stage.forward for stage in program.plan.stages) == pytest.approx(expected, rel=0.1)
