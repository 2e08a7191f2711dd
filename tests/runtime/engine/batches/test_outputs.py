"""The model's output for the loss: outputs of earlier stages, and losses with parameters."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.errors import UsageError
from tests.runtime.engine.training import data, run, trainer_of
from tests.runtime.small import compiled, norm_mlp, sgd


def test_a_loss_with_parameters_trains_them():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, out, y):
            return F.cross_entropy(out * self.scale, y)

    loss = Scaled()
    run(trainer_of(norm_mlp(), 2, data()[0][0], "penalty", loss), data())
    assert loss.scale.item() != 1.0


def test_outputs_of_earlier_stages_may_be_passed_by_but_not_used():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
            self.early, self.late = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            early = None
            for i, layer in enumerate(self.layers):
                x = x + torch.tanh(layer(x))
                early = self.early(x) if i == 0 else early
            return {"early": early, "late": self.late(x)}

    torch.manual_seed(0)
    program = compiled(Heads(), 2, data()[0][0])
    assert program.stages[0]._lp_io[True].outputs == (0,)
    fine = program.trainer(lambda out, y: F.cross_entropy(out["late"], y), optimizer=sgd, method="bp")
    fine.step(*data()[0])
    bad = program.trainer(lambda out, y: F.cross_entropy(out["early"], y), optimizer=sgd, method="bp")
    with pytest.raises(UsageError, match=r"the loss uses output 0 of the model, which is made before the last stage"):
        bad.step(*data()[0])
