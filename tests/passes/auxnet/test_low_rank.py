"""One layer as two thinner ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from lpcompile.passes.auxnet import low_rank


def hooked(layer: nn.Module) -> nn.Module:
    """As torch.nn.utils.weight_norm does it: the weight is made at each call."""
    layer.register_forward_pre_hook(lambda module, args: None)
    return layer


@pytest.mark.parametrize(("layer", "size"), [
    (nn.Linear(6, 4), (4, 6)), (nn.Conv2d(3, 8, 5), (8, 75)), (nn.Conv2d(4, 8, 3, groups=2), None),
    (nn.BatchNorm2d(4), None), (hooked(nn.Linear(6, 4)), None),
])  # fmt: skip
def test_only_layers_that_are_one_matrix_can_be_split(layer: nn.Module, size: Any) -> None:
    assert low_rank.sides(layer) == size


def test_layers_that_run_twice_are_no_candidates() -> None:
    model = nn.Module()
    model.once, model.twice = nn.Linear(4, 4), nn.Linear(4, 4)
    graph = fx.Graph()
    value = graph.placeholder("x")
    for target in ("once", "twice", "twice"):
        value = graph.create_node("call_module", target, (value,))
    assert [str(n.target) for n in low_rank.candidates(graph, model)] == ["once"]


@pytest.mark.parametrize(("share", "rank"), [(0.5, 32), (0.25, 16), (0.001, low_rank.MIN_RANK)])
def test_the_cost_is_that_of_both_layers(share: float, rank: int) -> None:
    layer = nn.Linear(64, 128)
    assert low_rank.rank((128, 64), share) == rank
    pair = low_rank.split_layer(layer, rank, values=False)
    weights = sum(part.weight.numel() for part in pair)  # type: ignore[misc, operator]
    assert low_rank.scale((128, 64), rank) == pytest.approx(weights / layer.weight.numel())


@pytest.mark.parametrize("layer", [nn.Linear(6, 9), nn.Linear(6, 9, bias=False), nn.Conv2d(3, 9, 3, 2, 1)])
def test_at_full_rank_nothing_is_lost(layer: Any) -> None:
    torch.manual_seed(0)
    first, second = low_rank.split_layer(layer, min(low_rank.sides(layer) or ()), values=True)
    x = torch.randn(5, 6) if isinstance(layer, nn.Linear) else torch.randn(5, 3, 8, 8)
    assert torch.allclose(second(first(x)), layer(x), atol=1e-5)


def test_the_second_layer_takes_over_the_users_of_the_first() -> None:
    graph = fx.Graph()
    node = graph.create_node("call_module", "stem", (graph.placeholder("x"),))
    node.meta = {"path": "stem", "flops": 7}
    after = graph.call_function(torch.relu, (node,))
    graph.output(after)
    assert low_rank.insert(graph, node) == "stem_up"
    second = after.args[0]
    assert isinstance(second, fx.Node) and second.target == "stem_up" and second.args == (node,)
    assert second.meta["flops"] == 0 and node.meta["flops"] == 7
