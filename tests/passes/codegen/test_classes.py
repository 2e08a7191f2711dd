"""Units that are alike share a class; what differs is an argument."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lpcompile.passes.codegen.classes import Classes, SharedConstructor, UnitClass
from lpcompile.passes.codegen.tree import Part
from lpcompile.passes.codegen.units import Units
from tests.passes.codegen.stages import Blocks, opened, rows


def classes(model: nn.Module) -> Classes:
    stage = opened(model, rows())
    return Classes(Units(stage.root, {True: stage.view, False: stage.view}, stage.names))


def test_equal_blocks_share_a_class_without_arguments() -> None:
    (found,) = classes(Blocks(0, 0, 0)).found
    assert (found.name, len(found.units), found.parameters) == ("Block", 3, [])
    assert found.where() == "blocks.N for N = 0 ... 2."


class Two(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.one = Inner()
        self.two = Inner(**options)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))  # type: ignore[no-any-return]


class Inner(nn.Module):
    def __init__(self, hidden: int = 6, eps: float = 1e-5, wide: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4, eps=eps)
        self.up = nn.Linear(4, hidden)
        self.down = nn.Linear(hidden, 4)
        self.gate = nn.Linear(4, 4) if wide else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.down(torch.tanh(self.up(self.norm(x))))
        return x + (out if self.gate is None else out * self.gate(x))


def test_slots_that_differ_together_are_one_argument() -> None:
    found = classes(Two(hidden=8))
    (made,) = found.found
    assert made.parameters == ["out_features"]
    assert {slot[0] for slot in made.arguments} == {("up",), ("down",)}
    assert [i.arguments for i in found.instances.values()] == [{"out_features": 6}, {"out_features": 8}]
    assert SharedConstructor(made, found.instances, found.names).write()[1:] == [
        "self.up = nn.Linear(4, out_features)",
        "self.down = nn.Linear(out_features, 4)",
    ]


def test_a_default_of_the_layer_is_a_default_of_the_class() -> None:
    (made,) = classes(Two(eps=1e-3)).found
    assert made.defaults == {"eps": 1e-5}


def test_a_block_with_another_child_is_a_class_named_after_it() -> None:
    assert {c.name for c in classes(Two(wide=True)).found} == {"Inner", "InnerGate"}


def test_a_class_says_where_its_units_are() -> None:
    def where(*paths: str) -> str:
        parts = [Part(tuple(path.split(".")), nn.Module()) for path in paths]
        return UnitClass("Block", parts, {}, {}, [], {}).where()

    assert where("layer1.0") == "layer1.0."
    assert where("layer.0.attn", "layer.2.attn") == "layer.N.attn for N = 0, 2."
    assert where("encoder", "decoder.0") == "encoder, decoder.0."
