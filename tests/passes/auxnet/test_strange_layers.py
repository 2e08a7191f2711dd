"""AuxNets of stages with layers that nobody tuned for: made of real tensors, and never the end of a compilation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import lpcompile
from lpcompile.passes.auxnet import derive


class Scripted(torch.jit.ScriptModule):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    @torch.jit.script_method
    def forward(self, x):
        return torch.relu(self.lin(x)) + x


class Groups(nn.Linear):
    """A layer with a plain tensor that others read (pytorch-tabnet's group matrix)."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.matrix = torch.eye(8)


class ReadsGroups(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.groups = Groups()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        x = self.groups(x)
        for layer in self.layers:
            x = x + layer(x).matmul(self.groups.matrix)
        return x


class Grid(nn.Module):
    """A layer that keeps what it has computed once (neuraloperator's grid embedding)."""

    def __init__(self) -> None:
        super().__init__()
        self.grid = None

    def forward(self, x):
        if self.grid is None:
            self.grid = torch.linspace(0, 1, x.shape[-1])
        return x + self.grid


def compiled(model, K=2, **options):
    return lpcompile.parallelize(model, K, example_inputs=torch.randn(4, 8), cost="flops", **options)


def one_step(program):
    """The loss of one step of `penalty`."""
    trainer = program.trainer(
        lambda out, y: out.square().mean(), optimizer=lambda ps: torch.optim.SGD(ps, 0.01), method="penalty", warmup=0
    )
    return trainer.step(torch.randn(4, 8), torch.zeros(4))["loss"]


def test_script_modules_are_layers_of_an_auxnet():
    program = compiled(nn.Sequential(*[Scripted() for _ in range(4)]), method="penalty")
    assert one_step(program) > 0


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.lin(x))


def test_a_traced_block_between_others_is_copied_with_weights_that_learn():
    with pytest.warns(FutureWarning):
        traced = [torch.jit.trace(Branch(), torch.randn(2, 8)) for _ in range(2)]
    program = compiled(nn.Sequential(Branch(), traced[0], Branch(), traced[1], Branch(), Branch()), method="penalty",
                       aux_budget=0.9)  # fmt: skip
    assert program.plan.boundaries[0].aux.kind == "derived" and not program.plan.notes
    assert one_step(program) > 0


def test_a_plain_tensor_of_a_layer_is_copied():
    model = ReadsGroups()
    program = compiled(model, 2, method="penalty", aux_budget=1.0)
    assert one_step(program) > 0
    assert all(m.matrix is not model.groups.matrix for m in program.auxnets[0].modules() if isinstance(m, Groups))


def test_an_auxnet_never_holds_fake_tensors():
    program = compiled(nn.Sequential(Grid(), *[nn.Linear(8, 8) for _ in range(4)]), method="penalty")
    held = [v for aux in program.auxnets for m in aux.modules() for v in vars(m).values()]
    assert not any(isinstance(v, FakeTensor) for v in held)
    assert one_step(program) > 0


def fail(*args, **kwargs):
    raise RuntimeError("no copies of me")


def test_a_stage_that_cannot_be_made_smaller_gets_an_adapter_and_a_note(monkeypatch):
    monkeypatch.setattr(derive, "choose", fail)
    program = compiled(nn.Sequential(*[Scripted() for _ in range(4)]), method="penalty")
    assert program.plan.boundaries[0].aux.kind == "adapter"
    assert "no copies of me" in program.plan.notes[0]


def test_where_no_adapter_can_be_made_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setattr(derive, "choose", fail)
    monkeypatch.setattr(derive, "_adapted", fail)
    with pytest.raises(lpcompile.PlanError, match=r"no copies of me.*method='stream'"):
        compiled(nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)]), method="penalty")
