"""Two recordings at two batch sizes, compared: integers that follow the batch, and differences that forbid it."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from lpcompile.core.stage_io import TensorSpec
from lpcompile.passes.graph.batch import (
    Affine,
    Different,
    batch_size,
    confirm,
    cropped,
    follow_batch,
    follow_device,
    follows,
    resized,
    same_graph,
)
from lpcompile.passes.graph.calls import batch_of, device_of, scale


def graph(batch: int, *arguments: Any, target: Any = torch.reshape, width: int = 4, **keywords: Any) -> fx.Graph:
    """`target(x, *arguments)` as recorded at a batch size."""
    made = fx.Graph()
    x = made.placeholder("x")
    out = made.call_function(target, (x, *arguments), keywords)
    for node in (x, out):
        node.meta["spec"] = TensorSpec((batch, width), torch.float32)
    made.output((out,))
    return made


def operation(made: fx.Graph) -> fx.Node:
    return next(n for n in made.nodes if n.target is torch.reshape)


def test_the_batch_size_is_the_leading_size_of_the_first_input_that_has_one() -> None:
    assert batch_size([torch.tensor(1.0), torch.zeros(3, 2)]) == 3
    assert batch_size([torch.tensor(1.0)]) is None


def test_resized_repeats_or_drops_rows_and_leaves_inputs_without_the_batch() -> None:
    rows, table = torch.arange(3), torch.zeros(5)
    longer, same = resized([rows, table], 5)
    assert longer.tolist() == [0, 1, 2, 0, 1] and same is table
    assert resized([rows], 2)[0].tolist() == [0, 1]


def test_large_images_are_cropped_and_other_inputs_stay() -> None:
    image, small, table = torch.randn(2, 3, 20, 30), torch.randn(2, 3, 15, 30), torch.randn(2, 40)
    cut = cropped([image, small, table], 8)
    assert torch.equal(cut[0], image[:, :, :8, :8]) and cut[1] is small and cut[2] is table
    assert cropped(given := [small, table], 8) is given


def test_integers_and_shapes_that_follow_the_batch_are_found() -> None:
    left = graph(2, (7, 4))
    marks = same_graph(left, graph(3, (10, 4)), (2, 3))
    assert marks[operation(left)][0] == [None, [Affine(3, 1), None]]
    assert operation(left).meta["spec"].batch == (1, 0)
    assert follows(marks[operation(left)]) and not follows([None, {"a": None}])


def test_slices_and_keywords_are_compared_too() -> None:
    left = graph(2, slice(0, 2), target=operator.getitem)
    node = next(n for n in left.nodes if n.op == "call_function")
    assert same_graph(left, graph(3, slice(0, 3), target=operator.getitem), (2, 3))[node][0][1] == [
        None,
        (1, 0, "batch"),
        None,
    ]
    left = graph(2, shape=(2, 4))
    assert same_graph(left, graph(3, shape=(3, 4)), (2, 3))[operation(left)][1] == {"shape": [(1, 0, "batch"), None]}


@pytest.mark.parametrize(
    "left, right, reason",
    [
        (graph(2, (2, 4)), graph(3, (3, 4), target=torch.squeeze), "against"),
        (graph(2, (2, 4)), graph(3, (3, 4, 1)), "against"),
        (graph(2, 0.5), graph(3, 0.25), "0.5 against 0.25"),
        (graph(2, (3, 4)), graph(3, (1, 4)), "3 at batch 2 and 1 at batch 3"),
        (graph(2, True), graph(3, False), "True against False"),
        (graph(2, (2, 4)), graph(3, (3, 4), width=5), "a size of 4 at batch 2 and 5 at batch 3"),
    ],
)
def test_any_other_difference_is_named(left: fx.Graph, right: fx.Graph, reason: str) -> None:
    with pytest.raises(Different, match=reason):
        same_graph(left, right, (2, 3))


def test_without_batches_integers_must_agree() -> None:
    with pytest.raises(Different, match="2 against 3"):
        same_graph(graph(2, (2, 4)), graph(3, (3, 4)))
    same_graph(graph(2, (2, 4)), graph(2, (2, 4)))


def test_with_other_image_sizes_an_offset_is_no_proof_and_shapes_may_differ() -> None:
    left = graph(2, (2, 4), width=8)
    same_graph(left, graph(3, (3, 4), width=6), (2, 3), other_sizes=True)
    assert operation(left).meta["spec"].batch == (1, 0)
    with pytest.raises(Different, match="7 at batch 2"):
        same_graph(graph(2, (7, 4)), graph(3, (10, 4)), (2, 3), other_sizes=True)


def test_a_third_batch_size_confirms_or_refutes_the_line() -> None:
    left = graph(2, (7, 4))
    marks = same_graph(left, graph(3, (10, 4)), (2, 3))
    confirm(marks, graph(9, (28, 4)), 9)
    with pytest.raises(Different, match="81 at batch 9 where 3 x batch \\+ 1 was expected"):
        confirm(marks, graph(9, (81, 4)), 9)
    with pytest.raises(Different, match="at batch 9"):
        confirm(marks, graph(9, (28, 5)), 9)


def test_integers_become_nodes_computed_from_the_input() -> None:
    left = graph(2, (8, 1))
    follow_batch(left, same_graph(left, graph(3, (12, 1)), (2, 3)))
    left.lint()
    assert [n.target for n in left.nodes if n.op == "call_function"] == [batch_of, scale, torch.reshape]
    assert fx.GraphModule({}, left)(torch.zeros(5, 4))[0].shape == (20, 1)


def test_a_recorded_device_follows_the_inputs() -> None:
    made = graph(2, target=torch.empty_like, device=torch.device("cpu"))
    follow_device(made, torch.device("cpu"))
    made.lint()
    node = next(n for n in made.nodes if n.target is torch.empty_like)
    assert node.kwargs["device"].target is device_of
    assert fx.GraphModule({}, made)(torch.zeros(2, device="meta"))[0].device.type == "meta"
