"""Consecutive calls of the children of a container as a loop."""

from __future__ import annotations

from torch import nn

from lpcompile.passes.codegen.loops import loop
from lpcompile.passes.codegen.tree import Part


def holder(count: int, kind: str = "list", name: str = "blocks", first: int = 0) -> Part:
    part = Part((name,), nn.Module(), kind=kind)
    part.children = {str(first + i): Part((name, str(first + i)), nn.Identity()) for i in range(count)}
    return part


def calls(*numbers: int, text: str = "self.blocks") -> list[str]:
    return [f"x = {text}[{n}](x)" for n in numbers]


def test_all_children_are_looped_over() -> None:
    assert loop(calls(0, 1, 2), "self.blocks", holder(3)) == ["for block in self.blocks:", "    x = block(x)"]


def test_some_children_are_a_slice() -> None:
    found = loop([*calls(0, 1, 2), "y = x", *calls(3)], "self.blocks", holder(4))
    assert found == ["for block in self.blocks[:3]:", "    x = block(x)", "y = x", *calls(3)]


def test_two_of_many_calls_stay() -> None:
    assert loop(calls(0, 1), "self.blocks", holder(4)) == calls(0, 1)


def test_calls_out_of_order_stay() -> None:
    assert loop(calls(2, 1, 0), "self.blocks", holder(3)) == calls(2, 1, 0)


def test_a_first_call_on_another_variable_is_assigned_before() -> None:
    lines = ["x = self.h[0](tokens, mask)", "x = self.h[1](x, mask)", "x = self.h[2](x, mask)"]
    assert loop(lines, "self.h", holder(3, name="h")) == [
        "x = tokens",
        "for block in self.h:",
        "    x = block(x, mask)",
    ]


def test_a_dict_is_looped_over_by_its_values() -> None:
    lines = [f'x = self.layers["{n}"](x)' for n in (4, 5, 6)]
    found = loop(lines, "self.layers", holder(3, "dict", "layers", first=4))
    assert found == ["for layer in self.layers.values():", "    x = layer(x)"]


def test_the_loop_variable_hides_no_other() -> None:
    found = loop(["block = y", *calls(0, 1, 2)], "self.blocks", holder(3))
    assert found[1:] == ["for block_ in self.blocks:", "    x = block_(x)"]
