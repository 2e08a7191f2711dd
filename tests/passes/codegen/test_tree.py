"""The modules of a stage as a tree, and the steps of its graph by container."""

from __future__ import annotations

import torch
from torch import nn

from lpcompile.passes.codegen.tree import Part, access, build_tree, is_stream, nodes_in
from tests.passes.codegen.stages import Block, Blocks, opened, rows


def test_parts_carry_the_names_of_the_user_s_classes() -> None:
    root = opened(Blocks(0, 0), rows()).root
    assert [p.original for p in root.children["blocks"].children.values()] == ["Block", "Block"]
    assert root.at(("blocks", "0", "up")).original == "Linear"  # type: ignore[union-attr]
    assert root.at(("blocks", "7", "up")) is None
    assert root.walk()[-1] is root


def test_a_module_with_a_part_elsewhere_is_cut() -> None:
    model = Block()
    half = nn.Module()
    half.add_module("norm", model.norm)
    assert build_tree(half, model).cut
    assert not opened(model, rows()).root.cut


def test_access_writes_indices_keys_and_odd_names() -> None:
    root = Part((), nn.Module())
    root.children["list"] = Part(("list",), nn.Module(), kind="list")
    root.children["list"].children = {"0": Part(("list", "0"), nn.Linear(2, 2))}
    root.children["dict"] = Part(("dict",), nn.Module(), kind="dict")
    assert access(root, ("list", "0", "weight")) == "self.list[0].weight"
    assert access(root, ("dict", "a b")) == 'self.dict["a b"]'
    assert access(root, ("class",)) == 'self._modules["class"]'
    root.module._parameters["a b"] = nn.Parameter(torch.ones(1))
    root.module._buffers["c d"] = torch.ones(1)
    assert access(root, ("a b",)) == 'self._parameters["a b"]'
    assert access(root, ("c d",)) == 'self._buffers["c d"]'


def test_a_container_spans_its_steps_and_knows_its_interface() -> None:
    model = Blocks(0, 0)
    stage = opened(model, rows())
    view = stage.view
    assert view.spans[()] == (0, len(view.steps))
    first, second = view.spans[("blocks", "0")], view.spans[("blocks", "1")]
    assert first[1] == second[0]
    assert view.spans[("blocks",)] == (first[0], second[1])
    inputs, outputs = view.interface(("blocks", "1"))
    assert inputs == [view.steps[first[1] - 1]] and outputs == [view.steps[second[1] - 1]]
    assert view.single and len(view.results) == 1


def test_streams_are_floating_point_values() -> None:
    view = opened(nn.Embedding(5, 4), torch.tensor([1, 2])).view
    assert not is_stream(view.arguments[0])
    assert is_stream(view.steps[-1])


def test_every_occurrence_of_a_node_is_found() -> None:
    view = opened(nn.ReLU(), rows()).view
    x = view.arguments[0]
    assert nodes_in(([x, 1], {"a": x})) == [x, x]
