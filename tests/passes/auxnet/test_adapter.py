"""Adapters between any two shapes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import fx, nn

import lpcompile
from lpcompile.core.stage_io import TensorSpec
from lpcompile.passes.auxnet.adapter import MAX_DENSE_FEATURES, MIN_BOTTLENECK, Adapter, possible, sample
from tests.passes.auxnet.families import boundaries


class Plain(nn.Module):
    """No residual blocks at all: images, then tokens, then features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(*[nn.Conv2d(c, d, 3, s, 1) for c, d, s in [(3, 8, 1), (8, 16, 2), (16, 16, 1)]])
        self.tokens = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24))
        self.head = nn.Sequential(nn.Linear(24 * 25, 40), nn.ReLU(), nn.Linear(40, 40), nn.Linear(40, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.tokens(self.conv(x).flatten(2).transpose(1, 2))
        out: torch.Tensor = self.head(x.flatten(1))
        return out


@pytest.mark.parametrize("K", [2, 3, 4, 5])
def test_where_nothing_can_be_dropped_an_adapter_fits_any_two_shapes(K: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 9, 9)
    program = lpcompile.parallelize(Plain(), K, example_inputs=x, cost="flops", gate=False, method="penalty")
    assert all(b.aux and b.aux.kind == "adapter" for b in program.plan.boundaries)
    for batch in (2, 3):
        for lams, xs in boundaries(program, [torch.randn(batch, 3, 9, 9)]):
            assert [(t.shape, t.dtype) for t in lams] == [(t.shape, t.dtype) for t in xs]
    assert all(next(a.parameters(), None) is not None for a in program.auxnets)


def spec(*shape: int, batch: tuple[int, ...] | None = None, dtype: torch.dtype = torch.float32) -> TensorSpec:
    """A tensor whose first dimension is the batch of 2."""
    return TensorSpec(shape, dtype, True, (1,) + (0,) * (len(shape) - 1) if batch is None else batch)


def adapter(source: TensorSpec, target: TensorSpec, flops: float = math.inf) -> tuple[nn.Module, dict[str, nn.Module]]:
    """An adapter as a module, and its layers by name."""
    layers: dict[str, nn.Module] = {}
    graph = fx.Graph()
    value = graph.placeholder("x")
    graph.output(Adapter("a", source, target, flops, torch.device("cpu"), layers).connect(graph, value))
    root = nn.Module()
    root.a = nn.ModuleDict({name.removeprefix("a."): layer for name, layer in layers.items()})
    return fx.GraphModule(root, graph), {name.removeprefix("a."): layer for name, layer in layers.items()}


@pytest.mark.parametrize(("source", "target", "names"), [
    (spec(2, 3, 8, 8), spec(2, 6, 4, 4), ["conv"]),
    (spec(2, 3, 8, 8), spec(2, 6, 5, 5), ["pool", "conv"]),  # no stride leads from 8 to 5
    (spec(2, 3, 4, 4), spec(2, 6, 8, 8), ["down", "act", "up"]),  # images do not grow
    (spec(2, 5, 8), spec(2, 5, 6), ["linear"]),
    (spec(2, 5, 8), spec(2, 7, 6), ["tokens", "linear"]),
    (spec(2, 3, 4, 4), spec(2, 16, 6), ["linear"]),
    (spec(2, 3, 4, 4), spec(2, 10), ["down", "act", "up"]),
    (spec(2, 2000), spec(2, 3000), ["pool", "down", "act", "up"]),
    (spec(5, 2, 8, batch=(0, 1, 0)), spec(5, 2, 6, batch=(0, 1, 0)), ["down", "act", "up"]),
    (spec(2, 8), spec(4, 4, batch=(0, 0)), ["down", "act", "up"]),
    (spec(2, 8), spec(6, 4, batch=(3, 0)), ["down", "act", "up"]),
])  # fmt: skip
def test_an_adapter_gives_the_targets_shape_at_any_batch_size(
    source: TensorSpec, target: TensorSpec, names: list[str]
) -> None:
    module, layers = adapter(source, target)
    assert list(layers) == names
    for batch in (2, 3):
        assert module(torch.randn(source.at(batch))).shape == target.at(batch)


def test_an_adapter_casts_to_the_targets_dtype() -> None:
    module, _ = adapter(spec(2, 5, 8), spec(2, 5, 6, dtype=torch.bfloat16))
    assert module(torch.randn(2, 5, 8)).dtype == torch.bfloat16


def test_a_small_budget_buys_thinner_layers() -> None:
    assert list(adapter(spec(2, 8, 8, 8), spec(2, 16, 8, 8), 1.0)[1]) == ["depthwise", "pointwise"]
    _, layers = adapter(spec(2, 5, 64), spec(2, 5, 64), 1.0)
    assert list(layers) == ["linear_down", "linear_up"]
    assert layers["linear_down"].out_features == layers["linear_up"].in_features == MIN_BOTTLENECK
    _, dense = adapter(spec(2, 4000), spec(2, 4000), 1.0)
    assert (dense["down"].in_features, dense["down"].out_features) == (MAX_DENSE_FEATURES, MIN_BOTTLENECK)


def test_adapters_are_possible_between_floats_with_a_batch_dimension() -> None:
    ids, image, bare = spec(2, 8, dtype=torch.int64), spec(2, 3, 8, 8), spec(4, 4, batch=(0, 0))
    assert possible(image, spec(2, 8)) and possible(image, bare)
    assert not possible(bare, image) and not possible(ids, image) and not possible(image, ids)
    assert not possible(image, spec(2, 8, dtype=torch.complex64)) and not possible(image, spec(2, 2, batch=(1, 1)))
    assert sample(image) == (3, 8, 8) and sample(bare) is None and sample(spec(5, 2, batch=(0, 1))) is None
