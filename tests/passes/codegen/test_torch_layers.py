"""Constructor arguments, recovered from a layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lpcompile.passes.codegen.torch_layers import MISSING, constructor_arguments, constructor_default, required


@pytest.mark.parametrize(
    ("layer", "arguments"),
    [
        (nn.Linear(3, 4, bias=False), {"in_features": 3, "out_features": 4, "bias": False}),
        (nn.Conv2d(3, 8, 3, padding=1), {"in_channels": 3, "out_channels": 8, "kernel_size": 3, "padding": 1}),
        (nn.Conv2d(3, 8, (3, 1)), {"in_channels": 3, "out_channels": 8, "kernel_size": (3, 1)}),
        (nn.ReLU(inplace=True), {"inplace": True}),
        (nn.LayerNorm(4, dtype=torch.float64), {"normalized_shape": 4, "dtype": torch.float64}),
        (nn.GRU(2, 3, num_layers=2), {"input_size": 2, "hidden_size": 3, "num_layers": 2}),
        (nn.MultiheadAttention(4, 2, bias=False), {"embed_dim": 4, "num_heads": 2, "bias": False}),
    ],
)
def test_only_arguments_that_differ_from_the_defaults_are_given(layer: nn.Module, arguments: dict[str, Any]) -> None:
    assert constructor_arguments(layer) == arguments


def test_a_changed_layer_has_no_arguments() -> None:
    layer = nn.Linear(3, 4)
    layer.bias = nn.Parameter(torch.zeros(5))
    assert constructor_arguments(layer) is None
    extra = nn.BatchNorm1d(4)
    extra.register_buffer("more", torch.zeros(1))
    assert constructor_arguments(extra) is None


def test_a_layer_that_is_not_of_torch_nn_has_no_arguments() -> None:
    class Mine(nn.Linear):
        pass

    assert constructor_arguments(Mine(3, 4)) is None


def test_required_parameters_have_no_default() -> None:
    assert required(nn.Linear) == ("in_features", "out_features")
    assert constructor_default(nn.Linear, "bias") is True
    assert constructor_default(nn.Linear, "in_features") is MISSING
    assert constructor_default(nn.RNN, "nonlinearity") == "tanh"


class Wrapping(nn.Module):
    """A layer of a library that takes another layer."""

    __module__ = "torch_geometric.nn.conv.wrapping"

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv


def test_a_layer_is_no_argument_of_another() -> None:
    assert constructor_arguments(Wrapping(nn.Linear(3, 4))) is None
