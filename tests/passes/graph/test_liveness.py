"""Which values cross a position of a graph, and which a stage recomputes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import lpcompile
from lpcompile.passes.graph.liveness import Liveness, liveness


class Masked(nn.Module):
    """A cheap mask from the input, used after two layers; `write` fills it in place."""

    def __init__(self, write: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.write = write

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        mask = lengths * 2
        h = self.first(x)
        if self.write:
            mask.copy_(h[:, :1].detach())
        return self.second(h) * mask


def analysed(model: nn.Module) -> Liveness:
    captured = lpcompile.capture(model, (torch.randn(2, 64), torch.ones(2, 1)))
    return liveness(captured._lp_graphs[True], model)


def step(live: Liveness, name: str) -> int:
    return next(i for i, n in enumerate(live.steps) if n.name == name)


def names(nodes: object) -> list[str]:
    return [n.name for n in nodes]  # type: ignore[attr-defined]


def test_a_layer_and_its_results_are_expensive_and_a_mask_is_cheap() -> None:
    live = analysed(Masked())
    assert {n.name: live.is_cheap(n) for n in live.steps} == {"mul": True, "first": False, "second": False,
                                                              "mul_1": False}  # fmt: skip


def test_only_expensive_values_cross_a_position() -> None:
    live = analysed(Masked())
    assert names(live.live[step(live, "first")]) == ["first"]
    assert live.live[step(live, "mul_1")] == []


def test_a_stage_recomputes_what_is_cheap_in_program_order() -> None:
    live = analysed(Masked())
    mask = live.steps[step(live, "mul")]
    assert names(live.remade(mask, step(live, "first"))) == ["mul"]


def test_a_write_makes_every_value_of_its_storage_expensive() -> None:
    live = analysed(Masked(write=True))
    mask = live.steps[step(live, "mul")]
    assert not live.is_cheap(mask)
    assert "mul" in names(live.live[step(live, "first")])


def test_writes_up_to_the_position_are_recomputed_with_a_value_and_later_ones_are_not() -> None:
    live = analysed(Masked(write=True))
    mask, write = live.steps[step(live, "mul")], step(live, "copy_")
    assert "copy_" in names(live.remade(mask, write))
    assert names(live.remade(mask, write - 1)) == ["mul"]


def test_an_input_that_needs_a_gradient_is_expensive() -> None:
    model = Masked()
    captured = lpcompile.capture(model, (torch.randn(2, 64), torch.ones(2, 1, requires_grad=True)))
    live = Liveness(captured._lp_graphs[True], model)
    assert not live.is_cheap(live.steps[step(live, "mul")])


def test_a_graph_is_analysed_once() -> None:
    model = Masked()
    graph = lpcompile.capture(model, (torch.randn(2, 64), torch.ones(2, 1)))._lp_graphs[True]
    assert liveness(graph, model) is liveness(graph, model)
