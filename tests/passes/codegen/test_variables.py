"""Names of values: hints from the graph, and a scope that reuses what is free."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from lpcompile.core.stage_io import TensorSpec
from lpcompile.passes.codegen.items import Item
from lpcompile.passes.codegen.text.values import Names
from lpcompile.passes.codegen.variables import Scope, hint, mixes, module_hint
from lpcompile.passes.graph import calls


@pytest.mark.parametrize(
    ("path", "name"),
    [("layer1.0.conv1", "out"), ("layer1.0.downsample", "identity"), ("encoder.pos_embed", "pos_embed"),
     ("wte", "tokens"), ("0", "out")],
)  # fmt: skip
def test_modules_hint_at_their_result(path: str, name: str) -> None:
    assert module_hint(path) == name


def stream(node: fx.Node, dtype: torch.dtype = torch.float32) -> fx.Node:
    node.meta["spec"] = TensorSpec((2, 4), dtype, batch=(1, 0))
    return node


def test_what_goes_into_attention_is_named_after_its_role() -> None:
    graph = fx.Graph()
    x = stream(graph.placeholder("lam_0"))
    q, k, v = (stream(graph.call_method("view", (x, 2, 4))) for _ in range(3))
    k = stream(graph.call_method("transpose", (k, 0, 1)))
    attended = graph.call_function(F.scaled_dot_product_attention, (q, k), {"value": v})
    assert [hint(n) for n in (q, k, v, attended)] == ["query", "key", "value", "attended"]
    assert hint(x) == "x"
    assert mixes(attended) and not mixes(q)


def test_wrappers_and_dtypes_are_seen_through() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    assert hint(graph.call_function(calls.NoGrad(torch.softmax), (x, 1))) == "weights"
    assert hint(stream(graph.call_method("gt", (x, 0)), torch.bool)) == "mask"
    assert hint(stream(graph.call_method("argmax", (x,)), torch.int64)) == "index"


def test_a_result_takes_over_the_name_of_an_input_that_is_used_last() -> None:
    graph = fx.Graph()
    x = stream(graph.placeholder("x"))
    y = stream(graph.call_method("relu", (x,)))
    item = Item([x], [y], y)
    scope = Scope(Names(), is_stage=False)
    scope.add_argument(x)
    scope.set_lifetimes([item], [y])
    assert scope.variables == {x: "x"} and scope.live(0) == set()
    assert scope.choose(0, item, y) == "x"
    scope.set_lifetimes([item], [x, y])
    assert scope.live(0) == {"x"}
    assert scope.choose(0, item, y) == "out"


def test_the_arguments_of_a_stage_keep_their_names() -> None:
    graph = fx.Graph()
    scope = Scope(Names(), is_stage=True)
    for name in ("lam_0", "inputIds", "torch"):
        scope.add_argument(stream(graph.placeholder(name)))
    assert list(scope.variables.values()) == ["lam_0", "input_ids", "torch_"]


def test_a_free_name_is_neither_used_nor_imported_nor_reserved() -> None:
    scope = Scope(Names(), is_stage=False)
    scope.names.taken.add("gate")
    assert scope.free("gate", {"gate2"}) == "gate3"
    assert scope.free("x", {"x", "out"}) == "y"
    assert scope.free("print", set()) == "print2"


def test_lifetimes_after_a_position_are_counted_again() -> None:
    graph = fx.Graph()
    a, b, c = (graph.placeholder(n) for n in "abc")
    items = [Item([a], [b]), Item([b], [c]), Item([a, c], [])]
    scope = Scope(Names(), is_stage=False)
    scope.set_lifetimes(items, [])
    assert scope.last == {a: 2, b: 1, c: 2}
    del items[1]
    scope.set_lifetimes(items, [b], 1)
    assert scope.last == {a: 1, b: 2, c: 1}
