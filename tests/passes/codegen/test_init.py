"""Constructors: layers, containers and tensors under their own names."""

from __future__ import annotations

import torch
from torch import nn

from lpcompile.passes.codegen.init import (
    Constructor,
    Instance,
    container,
    default_of,
    inside,
    is_expression,
    own_tensors,
    slots,
    structure,
)
from lpcompile.passes.codegen.text.values import Names
from tests.passes.codegen.stages import Block, Blocks, Opened, opened, rows


def body(stage: Opened, instances: dict[tuple[str, ...], Instance] | None = None) -> list[str]:
    names = stage.names
    return Constructor(stage.root, instances or {}, names, lambda slot, value: names.literal(value)).write()


def test_layers_are_assigned_by_name() -> None:
    assert body(opened(Block(), rows())) == [
        "self.norm = nn.LayerNorm(4)",
        "self.up = nn.Linear(4, 8)",
        "self.down = nn.Linear(8, 4)",
    ]


class Tensors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("offset", torch.ones(4), persistent=False)
        self._parameters["a b"] = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale * self._parameters["a b"] + self.offset  # type: ignore[operator]


def test_tensors_are_parameters_and_buffers_again() -> None:
    stage = opened(Tensors(), rows())
    assert sorted(body(stage)) == [
        'self._parameters["a b"] = nn.Parameter(torch.empty(4))',
        'self.register_buffer("offset", torch.empty(4), persistent=False)',
        "self.scale = nn.Parameter(torch.empty(4), requires_grad=False)",
    ]
    assert sorted(n for n, _ in own_tensors(stage.root)) == ["a b", "offset", "scale"]


def test_a_unit_is_called_with_the_arguments_that_differ_from_its_defaults() -> None:
    stage = opened(Blocks(0, 0), rows())
    blocks = stage.part(("blocks",))
    blocks.kind = "list"
    for part in blocks.children.values():
        part.unit = True
    first, second = ({"width": 4, "rate": rate} for rate in (0.0, 0.5))
    instances = {("blocks", "0"): Instance("Block", first, {"rate": 0.0}),
                 ("blocks", "1"): Instance("Block", second, {"rate": 0.0})}  # fmt: skip
    assert body(stage, instances)[0] == "self.blocks = nn.ModuleList([Block(4), Block(4, rate=0.5)])"
    assert is_expression(blocks)


def test_equal_structures_differ_in_their_slots_only() -> None:
    small, large = (opened(nn.Sequential(nn.Linear(4, n)), rows()).root for n in (2, 3))
    assert structure(small, {}) == structure(large, {})
    assert slots(small, {})[("0",), "out_features"] == 2
    assert slots(large, {})[("0",), "out_features"] == 3
    assert structure(opened(nn.Sequential(nn.ReLU()), rows()).root, {}) != structure(small, {})
    assert [path for _, path in inside(small)] == [(), ("0",)]


def test_containers_loop_over_equal_children() -> None:
    names = Names()
    equal = {str(i): "B()" for i in range(3)}
    assert container("list", equal, names) == "nn.ModuleList([B() for _ in range(3)])"
    assert container("sequential", {**equal, "3": "C()"}, names) == "nn.Sequential(*[B() for _ in range(3)], C())"
    assert container("dict", {str(i): "B()" for i in range(2, 5)}, names) == (
        "nn.ModuleDict({str(i): B() for i in range(2, 5)})"
    )
    assert container("sequential", {"a": "A()"}, names) == 'nn.Sequential(OrderedDict({"a": A()}))'


def test_the_default_of_a_layer_s_argument_is_known() -> None:
    root = opened(Block(), rows()).root
    assert default_of(root, ("up",), "bias") is True
    assert default_of(root, (), "anything") is None
