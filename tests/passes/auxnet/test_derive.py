"""AuxNets: derived from any stage, of the right shape, within budget, and equal to their stage at the start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.passes.auxnet.derive import AuxNet, _last_layers, _source, derive, flops_of
from lpcompile.program import Program
from tests.passes.auxnet.families import FAMILIES, boundaries, compiled
from tests.passes.auxnet.small import stages


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
    assert program.plan.boundaries[0].aux is None
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
    program = lpcompile.parallelize(
        TwoStreams(), 3, example_inputs=x, cost="flops", method="penalty", init="consistent", max_width=2
    )
    pairs = boundaries(program, [x])
    assert [len(lams) for lams, _ in pairs] == [2, 2]
    assert all(torch.equal(a, b) for lams, xs in pairs for a, b in zip(lams, xs, strict=True))


class Forks(nn.Module):
    """Two branches that meet before the last two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right, self.middle, self.end = (nn.Linear(8, 8) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.stem(x))
        x = self.middle(self.left(x) + self.right(x))
        out: torch.Tensor = self.end(torch.tanh(x))
        return out


@pytest.mark.parametrize(("budget", "name"), [(0.0, "end"), (0.6, "middle"), (1.2, "add"), (4.0, "tanh")])
def test_the_last_layers_begin_at_a_value_that_all_paths_pass(budget: float, name: str) -> None:
    """`left` and `right` are cheap enough for some of these budgets, but neither is on all paths."""
    stage = stages(Forks(), torch.randn(2, 8), "stem")[1]
    graph = stage._lp_graphs[True]
    costs = {n.name: sum(flops_of(n)) for n in graph.nodes}
    found = _last_layers(stage, graph, costs, budget)
    assert found is not None and found.name == name


def test_an_adapter_starts_from_the_largest_float_input_or_the_embedding() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.a, self.b = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(6, 4)

        def forward(self, ids: torch.Tensor, small: torch.Tensor, large: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.a(self.embed(ids) + small) + self.b(large)
            return out

    inputs = (torch.randint(0, 9, (2, 5)), torch.randn(2, 5, 4), torch.randn(2, 5, 6))
    nodes = {n.name: n for n in lpcompile.capture(Two(), inputs)._lp_graphs[True].nodes}
    found = {name: _source(nodes[name]) for name in ("add_1", "a", "embed")}
    assert {k: v and v.name for k, v in found.items()} == {"add_1": "large", "a": "small", "embed": None}
    only_ids = lpcompile.capture(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4)), inputs[0])._lp_graphs[True]
    (last,) = [n for n in only_ids.nodes if n.target == "1"]
    start = _source(last)
    assert start is not None and start.target == "0"
