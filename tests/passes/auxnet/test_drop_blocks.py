"""The graph of a stage without its dropped blocks."""

from __future__ import annotations

import torch
from torch import nn

import lpcompile


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
