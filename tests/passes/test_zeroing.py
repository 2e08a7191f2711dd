"""A consistent start: what may be set to zero, what must not, and that branches learn. Each case was a bug once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, weight_norm

import lpcompile
from lpcompile.passes.residual import residuals
from lpcompile.passes.split import stage_io

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
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", init="consistent", gate=False)
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
        lpcompile.parallelize(model, 2, example_inputs=torch.randn(5, 4), cost="flops", init="consistent", gate=False)
    assert all(torch.equal(before[n], p) for n, p in model.named_parameters())
