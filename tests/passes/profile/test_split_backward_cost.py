"""What a backward in two parts costs."""

from __future__ import annotations

import torch
from torch import nn

import lpcompile
from lpcompile.passes.profile.split_backward_cost import FIRST_STAGE_SHARES, split_shares


def test_every_stage_but_the_first_is_measured_and_left_without_gradients() -> None:
    model, x = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)]), torch.randn(4, 8)
    program = lpcompile.parallelize(model, 3, example_inputs=x, cost="flops", gate=False, method="bp")
    first, *others = split_shares(program.stages, [x], repeats=2)
    assert first == FIRST_STAGE_SHARES and len(others) == 2
    assert all(share > 0 for pair in others for share in pair)
    assert all(p.grad is None for p in model.parameters())
