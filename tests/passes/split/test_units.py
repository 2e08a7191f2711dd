"""Units: the steps between cuts, and which cut of a run is kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.passes.graph.liveness import liveness
from lpcompile.passes.split import units as module
from lpcompile.passes.split.cuts import cuts
from lpcompile.passes.split.split import common_depth
from lpcompile.passes.split.units import Unit, _rank, units


def found(model: nn.Module, x: torch.Tensor, **options: Any) -> list[Unit]:
    captured = lpcompile.capture(model, x)
    return units(captured, cuts(captured, **options))


W = 1024  # so wide that a ReLU costs nothing beside a layer


class Block(nn.Module):
    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(W, W), nn.ReLU(inplace)

    def forward(self, x: torch.Tensor) -> Any:
        return self.act(x + self.linear(x))


X = torch.randn(4, W)


def test_units_cover_every_step_once_and_in_order() -> None:
    captured = lpcompile.capture(nn.Sequential(*[Block() for _ in range(4)]), X)
    steps = liveness(captured._lp_graphs[True], captured._lp.model).steps
    these = units(captured, cuts(captured))
    assert [i for u in these for i in range(u.first, u.last + 1)] == list(range(len(steps)))
    assert all(u.cut is not None and u.cut.legal and u.cut.position == u.last for u in these[:-1])
    assert these[-1].cut is None


def test_of_cuts_around_a_relu_the_one_between_modules_is_kept() -> None:
    these = found(nn.Sequential(*[Block() for _ in range(3)]), X)
    assert [u.cut.path for u in these[:-1] if u.cut] == ["0.act", "1.act"]  # not after the sum inside a block
    assert [u.name for u in these] == ["0.linear", "1.linear", "2.linear"]


def test_a_cut_before_a_layer_that_writes_in_place_ranks_behind_its_equals() -> None:
    model = nn.Sequential(nn.Linear(W, W), nn.ReLU(inplace=True), nn.Linear(W, W))
    captured = lpcompile.capture(model, X)
    live = liveness(captured._lp_graphs[True], model)
    before, after = (_rank(live, c) for c in cuts(captured) if c.legal)
    assert before[:2] == after[:2] and (before[2], after[2]) == (True, False)


def test_the_smaller_boundary_of_a_run_is_kept() -> None:
    class Double(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.cat([x, x], -1)

    these = found(nn.Sequential(nn.Linear(W, W // 2), Double(), nn.Linear(W, W)), X)
    assert [u.cut.nbytes for u in these if u.cut] == [4 * 4 * W // 2]


def test_cuts_that_differ_by_more_are_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(W, W), nn.ReLU(), nn.Linear(W, W))
    assert len(found(model, X)) == 2
    monkeypatch.setattr(module, "NEGLIGIBLE_SHARE", -1.0)
    assert len(found(model, X)) == 3


def test_units_of_one_module_are_numbered() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.end = nn.Linear(W, W), nn.Linear(W, W)

        def forward(self, x: torch.Tensor) -> Any:
            return self.end(self.layer(self.layer(x)))

    assert [u.name for u in found(Twice(), X)] == ["layer", "layer#2", "end"]


@pytest.mark.parametrize(("a", "b", "depth"), [("", "", 0), ("a.b", "a.b.c", 2), ("a.b", "a.c", 1), ("x.b", "a.b", 0)])
def test_common_depth_counts_modules_from_the_root(a: str, b: str, depth: int) -> None:
    assert common_depth(a.split(".") if a else [], b.split(".") if b else []) == depth
