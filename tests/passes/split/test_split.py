"""Stages: the user's layers, cut apart, and nothing else."""

from __future__ import annotations

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile.passes.split.split import stage_io


class Block(nn.Module):
    def __init__(self, inplace: bool = True) -> None:
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace)

    def forward(self, x):
        return self.act(x + self.norm(self.conv(x)))


def compile_(model, K, *inputs, **options):
    return lpcompile.parallelize(model, K, example_inputs=inputs, cost="flops", **options)


def images(batch=2):
    return torch.randn(batch, 4, 6, 6)


@pytest.fixture
def program():
    torch.manual_seed(0)
    return compile_(nn.Sequential(*[Block() for _ in range(6)]), 3, images())


def test_stages_share_the_models_parameters_and_names(program):
    model = program.module
    union = {}
    for stage in program.stages:
        union |= stage.state_dict(keep_vars=True)
    assert set(union) == set(model.state_dict())
    assert all(union[name] is tensor for name, tensor in model.state_dict(keep_vars=True).items())


def test_stages_run_alone_with_a_lam_placeholder(program):
    lam = images().requires_grad_()
    names = [n.name for n in program.stages[1].graph.nodes if n.op == "placeholder"]
    assert names == ["lam"]
    program.stages[1](lam).sum().backward()
    assert lam.grad is not None


def test_a_stage_that_starts_with_an_inplace_layer_leaves_its_input_alone():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1))
    program = compile_(model, 2, images(), pins={"cut": ["0"]})
    lam = images().requires_grad_()
    before = lam.detach().clone()
    program.stages[1](lam).sum().backward()
    assert torch.equal(lam.detach(), before)


def test_detached_stages_give_the_same_gradients(program):
    model, x = program.module, images()
    state = copy.deepcopy(model.state_dict())
    model(x).square().sum().backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    model.load_state_dict(state)
    lams, outs = [x], []
    for stage in program.stages:
        outs.append(stage(lams[-1]))
        lams.append(outs[-1].detach().requires_grad_())
    gradient = torch.autograd.grad(lams[-1].square().sum(), lams[-1])[0]
    for stage, lam, out in reversed(list(zip(program.stages, lams, outs, strict=False))):
        wanted = [*([lam] if lam.requires_grad else []), *stage.parameters()]
        found = torch.autograd.grad(out, wanted, gradient)
        for parameter, g in zip(stage.parameters(), found[-len(list(stage.parameters())) :], strict=True):
            parameter.grad = g
        gradient = found[0]
    assert all(torch.equal(p.grad, expected[n]) for n, p in model.named_parameters())


def test_stages_can_be_saved_copied_moved_and_compiled(program):
    stage, lam = program.stages[1].eval(), images()
    file = io.BytesIO()
    torch.save(stage, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    copied = copy.deepcopy(stage)
    assert torch.equal(loaded(lam), stage(lam)) and torch.equal(copied(lam), stage(lam))
    assert next(copied.parameters()) is not next(stage.parameters())
    assert torch.equal(torch.compile(stage, backend="eager")(lam), stage(lam))
    assert copied.double()(lam.double()).dtype == torch.float64
    assert stage_io(loaded) == stage_io(stage)


class TwoModes(nn.Module):
    """Training and evaluation are different graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.aux = nn.Linear(4, 2)

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = x + F.dropout(layer(x), 0.5, self.training)
            if i == 1 and self.training:
                early = self.aux(x)
        return (x, early) if self.training else x


def test_two_graphs_one_set_of_stages():
    model, x = TwoModes(), torch.randn(3, 4)
    program = compile_(model, 3, x)
    for training in (True, False, True):
        program.train(training)
        assert model.training is training
        torch.manual_seed(1)
        expected = model(x)
        torch.manual_seed(1)
        found = program(x)
        assert isinstance(found, tuple) is training
        assert torch.equal(found[0] if training else found, expected[0] if training else expected)
    model.eval()  # switched behind the program's back
    assert torch.equal(program(x), model(x))


def test_unused_parameters_have_a_home():
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.spare = nn.Linear(2, 2)
            self.register_buffer("count", torch.zeros(1))
            self.register_buffer("scratch", torch.zeros(1), persistent=False)

        def forward(self, x):
            return self.b(self.a(x))

    program = compile_(Spare(), 2, torch.randn(2, 4))
    keys = [set(s.state_dict()) for s in program.stages]
    assert set().union(*keys) == set(program.module.state_dict())
    assert sum("spare.weight" in k for k in keys) == 1


def test_a_tied_parameter_stays_one_tensor():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mid, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids):
            return self.head(self.mid(self.embed(ids)))

    program = compile_(Tied(), 3, torch.randint(0, 9, (2, 5)))
    assert program.plan.tied == (("embed.weight", (0, 2)),)
    assert program.stages[0].embed.weight is program.stages[2].head.weight
    assert "gradients are summed" in str(program.plan)
