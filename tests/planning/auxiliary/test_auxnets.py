"""AuxNets in a plan: options, budgets, the rank that runs them, and their dtype."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.errors import UsageError
from lpcompile.passes.split.split import Stage
from tests.passes.auxnet.families import FAMILIES, compiled


def test_tied_auxnets_run_where_their_weights_are() -> None:
    plan = compiled("post-activation ResNet", 4, aux="tied", method="penalty").plan
    assert [b.aux_rank for b in plan.boundaries] == [0, 1, 2]


def test_the_budget_changes_the_plan() -> None:
    plans = [compiled("post-activation ResNet", 3, aux_budget=b, method="penalty").plan for b in (0.05, 0.5)]
    shares = [[b.aux.share for b in p.boundaries if b.aux] for p in plans]
    assert max(shares[0]) < min(shares[1])
    assert plans[0].hash != plans[1].hash and plans[0].step < plans[1].step


@pytest.mark.parametrize(("method", "init", "budget"), [
    ("multiplier", "consistent", 0.1), ("penalty", "consistent", 0.05), ("lagrangian", "consistent", 0.05),
    ("penalty", "copy", 0.1),
])  # fmt: skip
def test_the_budget_is_what_method_and_start_need_unless_somebody_says(method: str, init: str, budget: float) -> None:
    assert compiled("post-activation ResNet", 2, method=method, aux_init=init).plan.aux_budget == budget
    assert compiled("post-activation ResNet", 2, method=method, aux_init=init, aux_budget=0.2).plan.aux_budget == 0.2


def test_the_plan_charges_an_auxnet_to_the_rank_that_runs_it() -> None:
    plan = compiled("post-activation ResNet", 3, method="penalty").plan
    for stage in plan.stages:
        hosted = sum(b.aux.share * (s.forward + s.backward) for b, s in zip(plan.boundaries, plan.stages, strict=False)
                     if b.aux and b.aux.rank == stage.index)  # fmt: skip
        assert stage.work == pytest.approx(stage.forward + stage.backward + hosted)


def test_a_plan_can_be_followed_without_touching_the_weights() -> None:
    plan = compiled("post-activation ResNet", 3, init="consistent").plan
    torch.manual_seed(3)
    model = models.resnet20()
    nn.init.uniform_(model.bn1.weight)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    call = FAMILIES["post-activation ResNet"][1]
    again = lpcompile.parallelize(model, **call, plan=plan)
    assert again.plan is plan
    assert [a.record.kept for a in again.auxnets] == [b.aux.kept for b in plan.boundaries if b.aux]
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_a_plan_of_another_model_is_refused() -> None:
    plan = compiled("post-activation ResNet", 3).plan
    with pytest.raises(lpcompile.PlanError, match=r"for another model: .*make a new plan"):
        lpcompile.parallelize(models.resnet32(), example_inputs=torch.randn(2, 3, 32, 32), plan=plan)


def factory(in_spec: Any, out_spec: Any, stage: Stage) -> nn.Module:
    assert isinstance(stage, Stage)
    return nn.Conv2d(in_spec.shape[1], out_spec.shape[1], 3, in_spec.shape[2] // out_spec.shape[2], 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"aux": "tight"}, r"aux='tight' is not one of derived, tied"),
        ({"aux_init": "warm"}, r"aux_init='warm' is not one of fresh, copy, consistent"),
        ({"init": "zero"}, r"init='zero' is neither"),
        ({"aux_dtype": torch.float16}, r"aux_dtype is float16, and AuxNets compute as the model does"),
        ({"auxnet": factory, "aux": "tied"}, r"drop one of the two"),
        ({"auxnet": factory, "init": "consistent"}, r"aux_init='consistent' cannot apply"),
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compiled("post-activation ResNet", 2, **options)


def test_bfloat16_auxnets_are_the_same_ones_and_nothing_else_is_rounded() -> None:
    torch.manual_seed(0)
    model, x = lpcompile.models.resnet20(), torch.randn(4, 3, 16, 16)
    options: dict[str, Any] = {"example_inputs": x, "cost": "flops", "aux_init": "copy", "method": "penalty"}
    full = lpcompile.parallelize(model, 2, **options)
    half = lpcompile.parallelize(model, 2, aux_dtype=torch.bfloat16, **options)
    assert (full.plan.aux_dtype, half.plan.aux_dtype) == ("", "bfloat16")
    assert full.plan.boundaries == half.plan.boundaries and ", bfloat16 " in str(half.plan)
    assert lpcompile.Plan.from_json(half.plan.to_json()) == half.plan
    assert lpcompile.parallelize(model, plan=half.plan, **options).plan.aux_dtype == "bfloat16"
    lams = []
    for program in (full, half):
        trainer = program.trainer(F.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, 0.0), method="penalty")
        worker, net = trainer.workers[0], trainer.auxnets[1]
        lams.append(worker.cast(1, net((), [x]))[0].detach())
        assert {p.dtype for w in trainer.workers for p in w.stage.module.parameters()} == {torch.float32}
        assert {p.dtype for p in net.module.parameters()} == {torch.float32}
    assert lams[0].dtype == lams[1].dtype == torch.float32
    off = float((lams[0] - lams[1]).square().sum() / lams[0].square().sum())
    assert 0 < off < 1e-3, off


def test_a_measured_plan_has_what_bfloat16_auxnets_take_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is met as without it; the plan then has the time that was measured with it."""
    from lpcompile.planning.auxiliary import auxnets as aux

    asked: list[str] = []

    def measured(stage: Any, net: Any, stage_inputs: Any, aux_inputs: Any, repeats: Any, known: Any, dtype: str) -> Any:
        asked.append(dtype)
        return aux.MeasuredShare(*((0.04,) * 3 if dtype else (0.1,) * 3))

    monkeypatch.setattr(aux, "measure_share", measured)
    torch.manual_seed(0)
    x = torch.randn(4, 3, 16, 16)
    plan = lpcompile.parallelize(
        lpcompile.models.resnet20(), 2, example_inputs=x, method="penalty", aux_dtype=torch.bfloat16
    ).plan
    assert asked[0] == "" and asked[-1] == "bfloat16"
    assert plan.boundaries[0].aux is not None and plan.boundaries[0].aux.share == 0.04
