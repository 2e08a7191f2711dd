"""AuxNets: derived from any stage, of the right shape, within budget, and equal to their stage at the start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.passes.auxnet.derive import AuxNet, derive
from lpcompile.program import Program
from tests.passes.auxnet.families import FAMILIES, boundaries, compiled


@pytest.mark.parametrize("name", FAMILIES)
def test_a_consistent_start_has_no_violation(name: str) -> None:
    program = compiled(name, 3, init="consistent")
    pairs = boundaries(program, [FAMILIES[name][1]["example_inputs"]])
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
    for lams, xs in boundaries(program, [FAMILIES[name][1]["example_inputs"]]):
        assert [(t.shape, t.dtype) for t in lams] == [(t.shape, t.dtype) for t in xs]
    aux = program.plan.boundaries[0].aux
    assert aux is not None and aux.kind == "derived" and aux.dropped
    assert aux.share <= 0.15 * 1.1


def test_a_stage_can_be_derived_by_itself() -> None:
    program = compiled("post-activation ResNet", 2, method="bp")
    assert program.auxnets == ()
    aux = derive(program.stages[0], budget=0.4)
    assert isinstance(aux, AuxNet) and aux.record.kept and 0 < aux.record.forward_share <= 0.4


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
    pairs = boundaries(program, [x])
    assert [len(lams) for lams, _ in pairs] == [2, 2]
    assert all(torch.equal(a, b) for lams, xs in pairs for a, b in zip(lams, xs, strict=True))
