"""A consistent start: what may be set to zero, what must not, and that branches learn. Each case was a bug once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

import lpcompile
from lpcompile import models
from lpcompile.errors import UsageError
from lpcompile.passes.graph.residual import residuals
from lpcompile.passes.split.split import stage_io

D = 8


class Stack(nn.Module):
    """A stem, six blocks `x = block(x)` and a head."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(4, D), nn.Linear(D, 3)
        self.blocks = nn.ModuleList([make() for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(x)
        return out


class Branch(nn.Module):
    """x + branch(x)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.branch = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Scaled(nn.Module):
    """Fixup: the last layer begins at zero, and a scale follows."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))
        nn.init.zeros_(self.branch[2].weight)
        nn.init.zeros_(self.branch[2].bias)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.branch(x)


class Parallel(nn.Module):
    """PaLM's block: two branches from one norm, added one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(D)
        self.long = nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Linear(D, D))
        self.short = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.long(h) + self.short(h)


class OnePlus(nn.Module):
    """A norm by hand whose scale is 1 + w."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.w = nn.Linear(D, D), nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        return x + (1 + self.w) * nn.functional.normalize(self.linear(x), dim=-1)


MAKERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: Branch(nn.Linear(D, 2 * D), nn.ReLU(), nn.Linear(2 * D, D)),
    "norm after": lambda: Branch(nn.Linear(D, D), nn.BatchNorm1d(D)),
    "activation after": lambda: Branch(nn.Linear(D, D), nn.LayerNorm(D), nn.GELU()),
    "ReLU after": lambda: Branch(nn.Linear(D, D), nn.ReLU()),
    "zero already": Scaled,
    "parallel": Parallel,
    "one plus": OnePlus,
    "weight norm": lambda: Branch(nn.Linear(D, D), nn.GELU(), parametrizations.weight_norm(nn.Linear(D, D))),
    "old weight norm": lambda: Branch(nn.Linear(D, D), nn.GELU(), weight_norm(nn.Linear(D, D))),
    "spectral norm": lambda: Branch(nn.Linear(D, D), nn.GELU(), parametrizations.spectral_norm(nn.Linear(D, D))),
}


UNABLE = ("ReLU after", "one plus", "spectral norm")  # no zero is there that could learn to be another number


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [name for name in MAKERS if name not in UNABLE])
def test_a_consistent_start_is_exact_and_every_branch_can_learn(name: str) -> None:
    torch.manual_seed(0)
    model, x = Stack(MAKERS[name]), torch.randn(5, 4)
    program = lpcompile.parallelize(
        model, 2, example_inputs=x, cost="flops", method="penalty", init="consistent", gate=False
    )
    program.train()
    assert stage_io(program.stages[0]).inputs == (0,)
    with torch.no_grad():
        assert torch.equal(program.stages[0](x), program.auxnets[0](x))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    after = dict(model.named_parameters())
    for k in range(6):
        mine = [n for n in before if n.startswith(f"blocks.{k}.")]
        assert any(not torch.equal(before[n], after[n]) for n in mine), f"block {k} cannot learn"


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("form", ["derived", "tied"])
@pytest.mark.parametrize("name", ["old weight norm", "weight norm", "spectral norm"])
def test_reparametrized_layers_can_be_kept(name: str, form: str) -> None:
    torch.manual_seed(0)
    model, x = Stack(MAKERS[name]), torch.randn(5, 4)
    model(x).sum().backward()  # old weight norm keeps the weight it computed
    options: dict[str, Any] = {"cost": "flops", "aux_budget": 0.6, "aux": form, "gate": False}
    program = lpcompile.parallelize(model, 2, example_inputs=x, **options)
    assert program.auxnets[0](x).shape == program.stages[0](x).shape


def test_the_stream_is_the_shortcut_of_parallel_branches() -> None:
    torch.manual_seed(0)
    model = Stack(Parallel)
    program = lpcompile.parallelize(model, 2, example_inputs=torch.randn(5, 4), cost="flops", gate=False, method="bp")
    stage = program.stages[0]
    found = residuals(stage._lp_graphs[True], stage)
    branches = {str(b.branch.target) for b in found}
    assert branches and all(".long." in b or b.endswith(".short") for b in branches)
    assert all(b.keeps for b in found)


def test_the_users_random_numbers_are_not_used_up() -> None:
    """A stem split in two is made of new layers, which draw their first weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), *[Branch(nn.Linear(64, 4), nn.Linear(4, 64)) for _ in range(6)])
    state = torch.get_rng_state()
    options: dict[str, Any] = {"cost": "flops", "gate": False, "aux_budget": 0.2, "pins": {"cut": ["1"]}}
    program = lpcompile.parallelize(model, 2, example_inputs=torch.randn(5, 64, generator=torch.Generator()), **options)
    assert any("by way of" in t for t in program.auxnets[0].record.thinned)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", UNABLE)
def test_where_no_branch_can_start_at_zero_the_model_is_left_alone_and_that_is_said(name: str) -> None:
    torch.manual_seed(0)
    model = Stack(MAKERS[name])
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with pytest.warns(UserWarning, match=r"not consistent at boundary 1: .*an adapter cannot start there"):
        lpcompile.parallelize(
            model, 2, example_inputs=torch.randn(5, 4), cost="flops", method="penalty", init="consistent", gate=False
        )
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())


class Gated(nn.Module):
    """The branch's last matrix is the model's embedding: it is not the branch's alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, D)
        self.branches = nn.ModuleList([nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 9), nn.GELU()) for _ in range(6)])

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        for branch in self.branches:
            x = x + branch(x) @ self.embedding.weight
        return x


def test_what_others_use_too_is_not_set_to_zero() -> None:
    torch.manual_seed(0)
    model, ids = Gated(), torch.randint(0, 9, (4, 5))
    with pytest.warns(UserWarning, match="not consistent"):
        lpcompile.parallelize(
            model, 2, example_inputs=ids, cost="flops", method="penalty", init="consistent", gate=False
        )
    assert bool(model.embedding.weight.any())


def test_frozen_branches_are_not_set_to_zero() -> None:
    torch.manual_seed(0)
    model = Stack(MAKERS["linear"])
    for block in model.blocks:
        block.requires_grad_(False)
    with pytest.warns(UserWarning, match="not consistent"):
        lpcompile.parallelize(
            model, 2, example_inputs=torch.randn(5, 4), cost="flops", method="penalty", init="consistent", gate=False
        )
    assert all(bool(p.any()) for p in model.blocks.parameters())


def test_a_program_that_is_refused_leaves_the_weights_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> str:
        raise lpcompile.GateError("no")

    monkeypatch.setattr("lpcompile.planning.pipeline.run_gate", refuse)
    torch.manual_seed(0)
    model = Stack(MAKERS["linear"])
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with pytest.raises(lpcompile.GateError):
        lpcompile.parallelize(
            model, 2, example_inputs=torch.randn(5, 4), cost="flops", method="penalty", init="consistent"
        )
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())


def test_a_copied_stem_in_two_layers_is_as_near_as_two_thin_layers_come() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), *[Branch(nn.Linear(64, 4), nn.Linear(4, 64)) for _ in range(6)])
    with torch.no_grad():
        model[0].weight.copy_(torch.randn(64, 3) @ torch.randn(3, 64))  # of rank 3: nothing need be lost
    options: dict[str, Any] = {"cost": "flops", "gate": False, "aux_budget": 0.2, "pins": {"cut": ["1"]}}
    program = lpcompile.parallelize(model, 2, example_inputs=torch.randn(5, 64), aux_init="copy", **options)
    (name,) = program.auxnets[0].record.split
    aux = dict(program.auxnets[0].named_parameters())
    assert torch.allclose(aux[f"{name}_up.weight"] @ aux[f"{name}.weight"], model[0].weight, atol=1e-3)


@pytest.mark.parametrize("form", ["recursive", "recursive-shared"])
def test_recursive_auxnets_of_stages_that_share_a_layer(form: str) -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layer = nn.Linear(4, D), Branch(nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            for _ in range(9):
                x = self.layer(x)
            return x

    torch.manual_seed(0)
    x = torch.randn(5, 4)
    program = lpcompile.parallelize(Shared(), 3, example_inputs=x, cost="flops", gate=False, aux=form, aux_budget=0.3)
    assert [aux(x).shape for aux in program.auxnets] == [(5, D), (5, D)]


@pytest.mark.parametrize("signs", ["statistics", "scale", "gradient"])
def test_a_trained_model_is_refused_for_a_consistent_start(signs: str) -> None:
    torch.manual_seed(0)
    model = models.resnet20()
    if signs == "statistics":
        model(torch.randn(2, 3, 32, 32))
    elif signs == "scale":
        nn.init.uniform_(model.bn1.weight)
    else:
        model.conv1.weight.grad = torch.zeros_like(model.conv1.weight)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    with pytest.raises(UsageError, match=r"was trained: .* aux_init='copy'"):
        lpcompile.parallelize(
            model, 2, example_inputs=torch.randn(2, 3, 32, 32), cost="flops", method="penalty", init="consistent"
        )
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
