"""AuxNets: derived from any stage, of the right shape, within budget, and equal to their stage at the start."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.errors import UsageError
from lpcompile.passes.auxnet.derive import AuxNet, aux_io, derive
from lpcompile.passes.graph.residual import residuals
from lpcompile.passes.split.split import Stage, stage_io
from lpcompile.program import Program

_spec = importlib.util.spec_from_file_location("families", Path(__file__).with_name("families.py"))
assert _spec is not None and _spec.loader is not None
_families = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_families)
FAMILIES: dict[str, Any] = _families.FAMILIES


def compiled(name: str, K: int = 2, **options: Any) -> Program:
    torch.manual_seed(0)
    build, call = FAMILIES[name]
    return lpcompile.parallelize(build(), K, **call, cost="flops", gate=False, **options)


def chain(program: Program, tensors: list[torch.Tensor]) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """(λ, X) at every boundary in training mode."""
    program.train()
    pairs, lam = [], list[torch.Tensor]()
    with torch.no_grad():
        for stage, aux in zip(program.stages, program.auxnets, strict=False):
            io, own = stage_io(stage), aux_io(aux)
            x = many(stage(*lam, *(tensors[i] for i in io.inputs)))[: len(io.boundary)]
            lam = many(aux(*(lam if own.lams else ()), *(tensors[i] for i in own.inputs)))
            pairs.append((lam, x))
    return pairs


def many(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_consistent_start_has_no_violation(name: str) -> None:
    program = compiled(name, 3, init="consistent")
    pairs = chain(program, [FAMILIES[name][1]["example_inputs"]])
    for lams, xs in pairs:
        assert [t.shape for t in lams] == [t.shape for t in xs]
        for lam, x in zip(lams, xs, strict=True):
            assert torch.equal(lam, x)
    kinds = [b.aux.kind for b in program.plan.boundaries if b.aux]
    assert kinds == ["derived", "derived"]
    assert all(b.aux and b.aux.violation == 0.0 and b.aux.zeroed for b in program.plan.boundaries)
    assert all(any(p.requires_grad for p in aux.parameters()) for aux in program.auxnets)


@pytest.mark.parametrize("name", FAMILIES)
def test_fresh_auxnets_meet_the_budget_and_the_shapes(name: str) -> None:
    program = compiled(name, 2, aux_budget=0.15)
    for lams, xs in chain(program, [FAMILIES[name][1]["example_inputs"]]):
        assert [(t.shape, t.dtype) for t in lams] == [(t.shape, t.dtype) for t in xs]
    aux = program.plan.boundaries[0].aux
    assert aux is not None and aux.kind == "derived" and aux.dropped
    assert aux.share <= 0.15 * 1.1


def test_a_tied_auxnet_adds_no_parameters_but_has_its_own_statistics() -> None:
    program = compiled("post-activation ResNet", 2, aux="tied")
    aux, stage = program.auxnets[0], program.stages[0]
    mine, theirs = dict(aux.named_parameters()), dict(stage.named_parameters())
    assert mine and all(mine[name] is theirs[name] for name in mine)
    buffers, others = dict(aux.named_buffers()), dict(stage.named_buffers())
    assert buffers and all(buffers[name] is not others[name] for name in buffers)
    before = {name: b.clone() for name, b in others.items()}
    aux(torch.randn(2, 3, 32, 32))
    assert all(torch.equal(before[name], b) for name, b in others.items())
    aux(torch.randn(2, 3, 32, 32)).sum().backward()
    assert theirs["conv1.weight"].grad is not None


def test_tied_auxnets_run_where_their_weights_are() -> None:
    plan = compiled("post-activation ResNet", 4, aux="tied", method="penalty").plan
    assert [b.aux_rank for b in plan.boundaries] == [0, 1, 2]


def test_resnet110_in_three_stages_gets_the_papers_resnet20() -> None:
    """The paper uses ResNet-20, three blocks for each of the three groups of ResNet-110: a sixth of its blocks."""
    pins = {"cut": ["layer1", "layer2"]}
    program = lpcompile.parallelize(
        models.resnet110(), 3, example_inputs=torch.randn(2, 3, 32, 32), cost="flops", gate=False, pins=pins,
        aux_budget=0.172,
    )  # fmt: skip
    resnet20 = models.resnet20()
    assert shapes(program.auxnets[0]) == shapes(nn.ModuleList([resnet20.conv1, resnet20.bn1, resnet20.layer1]))
    # the block that changes the shape is a little cheaper than the others
    assert shapes(derive(program.stages[1], budget=0.16)) == shapes(resnet20.layer2)


def shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return sorted(tuple(p.shape) for p in module.parameters())


def test_kept_blocks_are_spread_evenly() -> None:
    pins = {"cut": ["layer1", "layer2"]}
    program = lpcompile.parallelize(
        models.resnet110(), 3, example_inputs=torch.randn(2, 3, 32, 32), cost="flops", gate=False, pins=pins,
        aux_budget=0.172,
    )  # fmt: skip
    aux = program.plan.boundaries[0].aux
    assert aux is not None and aux.kept == ("layer1.3", "layer1.9", "layer1.15")
    second = program.plan.boundaries[1].aux
    assert second is not None and "layer2.0" in second.kept  # it changes the shape


@pytest.mark.parametrize("init", ["fresh", "copy"])
def test_a_stem_that_is_too_dear_is_thinned(init: str) -> None:
    """ResNet-18 in four stages: the stem alone is a fifth of stage 0, and its channels are the stream."""
    program = compiled("ResNet with projections", 4, aux_init=init)
    aux = program.plan.boundaries[0].aux
    assert aux is not None and aux.share <= 0.11 and any(name.startswith("conv1 ") for name in aux.thinned)
    x = FAMILIES["ResNet with projections"][1]["example_inputs"]
    for lams, xs in chain(program, [x]):
        assert [t.shape for t in lams] == [t.shape for t in xs]


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


def test_batchnorm_of_an_auxnet_counts_for_itself() -> None:
    program = compiled("post-activation ResNet", 2)
    aux, stage = program.auxnets[0], program.stages[0]
    aux(torch.randn(2, 3, 32, 32))
    assert all(int(b) == 1 for n, b in aux.named_buffers() if n.endswith("num_batches_tracked"))
    assert all(int(b) == 0 for n, b in stage.named_buffers() if n.endswith("num_batches_tracked"))


def test_copy_takes_the_weights_of_kept_blocks_and_leaves_the_model_alone() -> None:
    torch.manual_seed(0)
    model = models.resnet20()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    program = lpcompile.parallelize(
        model, 2, example_inputs=torch.randn(2, 3, 32, 32), cost="flops", gate=False, aux_init="copy"
    )
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    for name, p in program.auxnets[0].named_parameters():
        source = before[name][tuple(slice(0, s) for s in p.shape)]
        assert torch.equal(p, source)


def test_fresh_weights_are_the_same_on_every_rank_and_leave_the_generator_alone() -> None:
    def build() -> Program:
        return compiled("post-activation ResNet", 2)

    first = build()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    model, call = FAMILIES["post-activation ResNet"][0](), FAMILIES["post-activation ResNet"][1]
    torch.manual_seed(5)
    second = lpcompile.parallelize(model, 2, **call, cost="flops", gate=False)
    assert torch.equal(torch.rand(1), expected)
    for a, b in zip(first.auxnets[0].parameters(), second.auxnets[0].parameters(), strict=True):
        assert torch.equal(a, b)


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
        lpcompile.parallelize(model, 2, example_inputs=torch.randn(2, 3, 32, 32), cost="flops", init="consistent")
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


class Plain(nn.Module):
    """No residual blocks at all: images, then tokens, then features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(*[nn.Conv2d(c, d, 3, s, 1) for c, d, s in [(3, 8, 1), (8, 16, 2), (16, 16, 1)]])
        self.tokens = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24))
        self.head = nn.Sequential(nn.Linear(24 * 25, 40), nn.ReLU(), nn.Linear(40, 40), nn.Linear(40, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(self.conv(x).flatten(2).transpose(1, 2))
        out: torch.Tensor = self.head(x.flatten(1))
        return out


@pytest.mark.parametrize("K", [2, 3, 4, 5])
def test_where_nothing_can_be_dropped_an_adapter_fits_any_two_shapes(K: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9)
    program = lpcompile.parallelize(Plain(), K, example_inputs=x, cost="flops", gate=False, method="penalty")
    assert all(b.aux and b.aux.kind == "adapter" for b in program.plan.boundaries)
    for batch in (2, 3):
        for lams, xs in chain(program, [torch.randn(batch, 3, 9, 9)]):
            assert [(t.shape, t.dtype) for t in lams] == [(t.shape, t.dtype) for t in xs]
    assert all(next(a.parameters(), None) is not None for a in program.auxnets)


class TwoStreams(nn.Module):
    """Two tensors cross every boundary; one of them is never added to."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.side = nn.Linear(6, 8), nn.Linear(6, 4)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in range(6)]
        )
        self.head = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side, x = self.side(x), self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        out: torch.Tensor = self.head(torch.cat([x, side], -1))
        return out


def test_every_tensor_of_a_wide_boundary_gets_its_output() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    program = lpcompile.parallelize(TwoStreams(), 3, example_inputs=x, cost="flops", init="consistent", max_width=2)
    pairs = chain(program, [x])
    assert [len(lams) for lams, _ in pairs] == [2, 2]
    assert all(torch.equal(a, b) for lams, xs in pairs for a, b in zip(lams, xs, strict=True))


@pytest.mark.parametrize("form", ["recursive", "recursive-shared"])
def test_recursive_auxnets_go_from_the_input_to_every_boundary(form: str) -> None:
    program = compiled("post-activation ResNet", 4, aux=form, init="consistent", aux_budget=0.3)
    x = FAMILIES["post-activation ResNet"][1]["example_inputs"]
    assert all(aux_io(a).lams == () and aux_io(a).inputs == (0,) for a in program.auxnets)
    for lams, xs in chain(program, [x]):
        assert all(torch.equal(a, b) for a, b in zip(lams, xs, strict=True))
    first, second = (dict(a.named_parameters()) for a in program.auxnets[:2])
    assert (first["conv1.weight"] is second["conv1.weight"]) == (form == "recursive-shared")
    aux = [b.aux for b in program.plan.boundaries]
    assert all(a is not None and a.kind == form and a.forward > 0 for a in aux)


def factory(in_spec: Any, out_spec: Any, stage: Stage) -> nn.Module:
    assert isinstance(stage, Stage)
    return nn.Conv2d(in_spec.shape[1], out_spec.shape[1], 3, in_spec.shape[2] // out_spec.shape[2], 1)


def test_a_users_factory_is_called_with_both_specs() -> None:
    program = compiled("post-activation ResNet", 3, auxnet=factory)
    assert all(b.aux and b.aux.kind == "user" for b in program.plan.boundaries)
    for lams, xs in chain(program, [FAMILIES["post-activation ResNet"][1]["example_inputs"]]):
        assert [t.shape for t in lams] == [t.shape for t in xs]


def test_a_dict_gives_some_boundaries_and_leaves_the_others_to_us() -> None:
    program = compiled("post-activation ResNet", 3, auxnet={1: nn.Conv2d(3, 16, 3, 1, 1)})
    kinds = [b.aux.kind for b in program.plan.boundaries if b.aux]
    assert kinds == ["user", "derived"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            lambda i, o, s: nn.Conv2d(3, 5, 3, 1, 1),
            r"boundary 1 does not fit: .*\[2, 5, 32, 32\].*expected.*\[2, 16, 32, 32\]",
        ),
        (lambda i, o, s: nn.Conv2d(3, 16, 3, 1, 1).double(), r"boundary 1 does not fit"),
        (lambda i, o, s: nn.Linear(7, 7), r"boundary 1 does not fit: it fails on such an input"),
        (lambda i, o: nn.Identity(), r"factory failed for boundary 1 .*factory\(in_spec, out_spec, stage\)"),
        ([nn.Identity()], r"1 modules; K = 3 stages have 2 boundaries"),
        ({7: nn.Identity()}, r"names boundaries \[7\]; there are 1 to 2"),
        (nn.Identity(), r"one module, and there are 2 boundaries"),
        (lambda i, o, s: "net", r"boundary 1 is a str"),
    ],
)
def test_a_wrong_auxnet_is_refused_with_boundary_and_expectation(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compiled("post-activation ResNet", 3, auxnet=given)


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


def test_a_shared_layer_is_a_block_each_time_it_runs() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.layer = nn.Linear(4, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            for _ in range(8):
                x = x + self.layer(x)
            return x

    program = lpcompile.parallelize(
        Shared(), 2, example_inputs=torch.randn(2, 4), cost="flops", gate=False, method="bp"
    )
    groups = [b.group for b in residuals(program.stages[0]._lp_graphs[True], program.stages[0])]
    assert len(groups) == len(set(groups)) >= 3


def test_a_stage_can_be_derived_by_itself() -> None:
    program = compiled("post-activation ResNet", 2, method="bp")
    assert program.auxnets == ()
    aux = derive(program.stages[0], budget=0.4)
    assert isinstance(aux, AuxNet) and aux.record.kept and 0 < aux.record.forward_share <= 0.4


def test_bfloat16_auxnets_are_the_same_ones_and_nothing_else_is_rounded() -> None:
    torch.manual_seed(0)
    model, x = lpcompile.models.resnet20(), torch.randn(4, 3, 16, 16)
    options: dict[str, Any] = {"example_inputs": x, "cost": "flops", "aux_init": "copy"}
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
    from lpcompile.planning import auxnets as aux

    asked: list[str] = []

    def measured(stage: Any, net: Any, stage_inputs: Any, aux_inputs: Any, repeats: Any, known: Any, dtype: str) -> Any:
        asked.append(dtype)
        return aux.MeasuredShare(*((0.04,) * 3 if dtype else (0.1,) * 3))

    monkeypatch.setattr(aux, "measure_share", measured)
    torch.manual_seed(0)
    x = torch.randn(4, 3, 16, 16)
    plan = lpcompile.parallelize(lpcompile.models.resnet20(), 2, example_inputs=x, aux_dtype=torch.bfloat16).plan
    assert asked[0] == "" and asked[-1] == "bfloat16"
    assert plan.boundaries[0].aux is not None and plan.boundaries[0].aux.share == 0.04
