"""`as_published`: the paper's own settings under one name, and each of them changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import lpcompile
from lpcompile.core.plan import Plan
from lpcompile.errors import UsageError
from lpcompile.models import ResNet
from lpcompile.program import Program
from lpcompile.runtime.penalty.published import PUBLISHED, beta_of

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def compiled(**options: Any) -> Program:
    torch.manual_seed(0)
    return lpcompile.parallelize(ResNet(14, width=4), 3, example_inputs=X, cost="flops", gate=False, **options)


@pytest.fixture(scope="module")
def program() -> Program:
    return compiled(as_published=True)


def trainer(program: Program, **options: Any) -> Any:
    return program.trainer(F.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, 0.1), **options)


def test_it_is_the_penalty_method_with_fresh_auxnets_below_their_boundaries(program: Program) -> None:
    plan = program.plan
    assert plan.method == "penalty" and plan.aux_init == "fresh" and plan.as_published
    assert [b.aux_rank for b in plan.boundaries] == [0, 1]
    assert "as published" in str(plan)
    assert Plan.from_json(plan.to_json()) == plan


def test_stages_are_balanced_without_their_auxnets(program: Program) -> None:
    bare = compiled(method="pipedream").plan
    assert [s.last for s in program.plan.stages] == [s.last for s in bare.stages]


def test_the_trainer_has_the_papers_settings_and_takes_others_one_by_one(program: Program) -> None:
    plain = trainer(program).settings
    assert {name: getattr(plain, name) for name in PUBLISHED} == PUBLISHED
    assert plain.beta == beta_of(1e5) == 1e5 / (16 * 32 * 32)
    other = trainer(program, psi="scaled", beta=3.0).settings
    assert (other.psi, other.beta, other.clip, other.noise) == ("scaled", 3.0, 0.0, 0.01)
    metrics = trainer(program).step(X, torch.tensor([1, 2]))
    assert metrics["method"] == "penalty" and metrics["beta 1"] == pytest.approx(beta_of(1e5))


def test_auxnets_regress_on_the_corrected_variable() -> None:
    """θ ← θ - η ∂|λ - η g - AuxNet|²/∂θ, which is twice η times the gradient that the recursive form descends."""
    moved = {}
    for distil in ("target", "gradient"):
        program = compiled(as_published=True)
        before = [p.clone() for p in program.auxnets[0].parameters()]
        trainer(program, distil=distil, noise=0.0).step(X, torch.tensor([1, 2]))
        after = program.auxnets[0].parameters()
        moved[distil] = torch.cat([(b - a).flatten() for a, b in zip(before, after, strict=True)])
    assert moved["gradient"].abs().max() > 0
    torch.testing.assert_close(moved["target"], 2 * 0.1 * moved["gradient"], rtol=1e-3, atol=1e-7)


def test_a_switch_replaces_its_part_of_the_plan() -> None:
    plan = compiled(as_published=True, balance="work", placement="best", init="consistent").plan
    assert plan.aux_init == "consistent" and plan.as_published


def test_placement_and_balance_do_not_decide_for_each_other() -> None:
    found = {
        (placement, balance): compiled(method="penalty", placement=placement, balance=balance).plan
        for placement in ("best", "below")
        for balance in ("work", "stages")
    }
    hosts = {given: [b.aux_rank for b in plan.boundaries] for given, plan in found.items()}
    assert hosts["below", "work"] == hosts["below", "stages"] == [0, 1]
    assert hosts["best", "work"] == hosts["best", "stages"] != [0, 1]
    assert found["best", "stages"].step < found["below", "stages"].step


def test_methods_without_auxiliary_variables_are_refused() -> None:
    with pytest.raises(UsageError, match=r"as_published=True is the paper's method.*'1f1b' has none"):
        compiled(as_published=True, method="1f1b")
    with pytest.raises(UsageError, match=r"placement='above' is not one of best, below"):
        compiled(placement="above")
