"""Heads are derived for every family: small, from what crosses the boundary to the model's own outputs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.errors import PlanError, UsageError
from lpcompile.passes.auxnet import head as heads
from lpcompile.passes.auxnet.derive import AuxNet, aux_io
from lpcompile.passes.graph.tree import flatten
from lpcompile.passes.split.split import stage_io
from lpcompile.program import Program
from tests.passes.auxnet.families import FAMILIES, image, torchvision_model


def compiled(name: str, K: int, **options: Any) -> Program:
    torch.manual_seed(0)
    make, call = {**FAMILIES, **PLAIN}[name]
    return lpcompile.parallelize(make(), K, **call, cost="flops", gate=False, **{"method": "dgl", **options})


PLAIN: dict[str, Any] = {  # without residual blocks
    "VGG": (partial(torchvision_model, "vgg11"), image()),
}


def through(program: Program, x: torch.Tensor) -> list[tuple[list[Any], list[Any]]]:
    """What each head gives, and what the model gives in its place."""
    model, _ = flatten(program(x))
    found, lam = [], list[Any]()
    for stage, head in zip(program.stages, program.heads, strict=False):
        io = stage_io(stage, True)
        lam = list(several(stage(*lam, *(x for _ in io.inputs))))[: len(io.boundary)]
        own = aux_io(head)
        given = several(head(*lam, *(x for _ in own.inputs)))
        found.append((list(given), [model[i] for i in own.outputs]))
    return found


def several(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


SOME = ("post-activation ResNet", "ResNet with projections", "ConvNeXt", "MobileNetV3", "ViT", "Swin", "BERT", "GPT-2",
        "Llama", "torch.nn, norm after", "VGG")  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_a_head_gives_the_models_outputs_within_its_budget(name: str) -> None:
    program = compiled(name, 3)
    x = ({**FAMILIES, **PLAIN}[name])[1]["example_inputs"]
    for given, wanted in through(program, x):
        assert given and [(t.shape, t.dtype) for t in given] == [(t.shape, t.dtype) for t in wanted]
        sum(t.sum() for t in given if t.is_floating_point()).backward(retain_graph=True)
    for k, (head, boundary) in enumerate(zip(program.heads, program.plan.boundaries, strict=True)):
        assert boundary.aux is not None and boundary.aux.rank == k
        assert boundary.aux.share <= (0.11 if name in FAMILIES else 0.2)
        assert all(p.grad is not None for p in head.parameters())
        theirs = {id(p) for p in program.module.parameters()}
        assert not theirs & {id(p) for p in head.parameters()}


def test_the_plan_charges_a_head_to_its_stage_and_balances_it_away() -> None:
    plan = compiled("post-activation ResNet", 3).plan
    for stage in plan.stages:
        own = [b.aux.share for b in plan.boundaries if b.aux and b.aux.rank == stage.index]
        assert stage.work == pytest.approx((stage.forward + stage.backward) * (1 + sum(own)))
    assert plan.step == max(s.work for s in plan.stages) and "head of" in str(plan)
    assert lpcompile.Plan.from_json(plan.to_json()) == plan


def test_the_models_own_end_stays() -> None:
    """Final norm, pooling and classifier, at full width; of the blocks, what the budget allows."""
    program = compiled("pre-activation ResNet", 2)
    shapes = {n: tuple(p.shape) for n, p in program.heads[0].named_parameters()}
    assert shapes["fc.weight"] == (10, 64) and shapes["head_norm.0.weight"] == (64,)
    record = program.heads[0].record
    assert len(record.dropped) >= 2 and record.kind == "derived" and record.init == "fresh"


def test_a_plan_is_followed_with_the_same_heads() -> None:
    first = compiled("post-activation ResNet", 3, aux_budget=0.2)
    torch.manual_seed(9)
    call = FAMILIES["post-activation ResNet"][1]
    again = lpcompile.parallelize(models.resnet20(), **call, plan=first.plan)
    for a, b in zip(first.heads, again.heads, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    other = compiled("post-activation ResNet", 3, method="bp")
    assert other.plan.boundaries[0].aux is None and len(other.auxnets) == len(other.heads) == 2


def test_a_copy_takes_the_models_weights() -> None:
    program = compiled("post-activation ResNet", 2, aux_init="copy")
    theirs = dict(program.module.named_parameters())
    for name, p in program.heads[0].named_parameters():
        assert torch.equal(p, theirs[name][tuple(slice(0, s) for s in p.shape)])


def test_outputs_that_are_made_on_the_way_are_left_out() -> None:
    """GPT-2 gives keys and values of every layer beside its logits: they would keep all attention alive."""
    program = compiled("GPT-2", 2)
    assert program.captured._lp.trees[True].count > 10
    assert aux_io(program.heads[0]).outputs == (0,)
    assert aux_io(compiled("BERT", 2).heads[0]).outputs == (0, 1)


class Dense(nn.Module):
    """Every layer takes all before it, so nothing can be dropped or thinned; then a cheap end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8 * (i + 1), 8) for i in range(8))
        self.norm, self.end = nn.LayerNorm(72), nn.Linear(72, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.cat([x, torch.tanh(layer(x)).softmax(-1)], -1)
        out: torch.Tensor = self.end(self.norm(x))
        return out


def test_where_nothing_can_be_thinned_an_adapter_leads_to_the_models_own_end() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    program = lpcompile.parallelize(
        Dense(), 2, example_inputs=x, cost="flops", gate=False, method="dgl", max_width=1, aux_budget=0.8,
        pins={"cut": ["layers.3"]},
    )  # fmt: skip
    head = program.heads[0]
    assert head.record.kind == "adapter"
    names = {name.split(".")[0] for name, _ in head.named_parameters()}
    assert "end" in names and any(n.startswith("adapter") for n in names) and "layers" not in names
    assert head(program.stages[0](x)).shape == (4, 3)


def test_a_model_that_cannot_be_served_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    derive = heads.derive

    def whole(*args: Any, **kwargs: Any) -> AuxNet:
        made = derive(*args, **kwargs)
        made._lp_set_record(heads.replace(made.record, kind="whole"))
        return made

    monkeypatch.setattr(heads, "derive", whole)
    with pytest.raises(PlanError, match=r"no head can be derived for stage 0: .* give the trainer heads=\[...\]"):
        compiled("post-activation ResNet", 2)


def test_heads_are_emitted_and_loaded(tmp_path: Any) -> None:
    program = compiled("post-activation ResNet", 2)
    program.emit(tmp_path / "build")
    assert "class Head0" in (tmp_path / "build" / "head_0.py").read_text()
    loaded = lpcompile.load(tmp_path / "build")
    X = program.stages[0](torch.randn(2, 3, 32, 32))
    assert loaded.plan == program.plan and loaded.auxnets == ()
    assert torch.allclose(loaded.heads[0](X), program.heads[0](X), rtol=1e-6)
    compiled("post-activation ResNet", 2, method="bp").emit(tmp_path / "bp")
    with pytest.raises(UsageError, match=r"emitted for 'bp', which has no heads; emit one .*method='dgl'"):
        print(lpcompile.load(tmp_path / "bp").heads)
