"""Records of stages, read through their named interface."""

from __future__ import annotations

import torch
from torch import nn

from lpcompile.core.compiled import output_tree
from lpcompile.core.stage_io import io_of, own_io, refresh, use_mode
from tests.runtime.small import compiled, mlp


def test_stages_have_a_record_and_modules_of_the_user_have_none():
    program = compiled(mlp(), 2, torch.randn(4, 6, dtype=torch.float64))
    first, last = (io_of(stage) for stage in program.stages)
    assert first.inputs == (0,) and first.boundary == last.lams and last.outputs == (0,)
    assert own_io(program.stages[0], False) == io_of(program.stages[0], False)
    assert own_io(nn.Linear(2, 2)) is None


def test_a_mode_is_for_compiled_modules():
    plain = nn.Linear(2, 2)
    use_mode(plain, False)
    assert plain.training
    program = compiled(mlp(), 2, torch.randn(4, 6, dtype=torch.float64))
    use_mode(program.stages[0], False)
    assert not program.stages[0].training


def test_a_stage_takes_over_a_parameter_that_the_model_was_given():
    x = torch.randn(4, 6, dtype=torch.float64)
    program = compiled(mlp(), 2, x)
    program.module[0].linear.weight = nn.Parameter(torch.zeros(6, 6, dtype=torch.float64))
    refresh(program.stages[0])
    assert any(p is program.module[0].linear.weight for p in program.stages[0].parameters())


def test_the_output_has_the_models_structure():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = mlp()

        def forward(self, x):
            out = self.body(x)
            return {"logits": out, "sum": out.sum()}

    program = compiled(Named(), 2, torch.randn(4, 6, dtype=torch.float64))
    tree = output_tree(program, True)
    assert tree.count == 2 and tree.unflatten(["a", "b"]) == {"logits": "a", "sum": "b"}
