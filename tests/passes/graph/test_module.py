"""Graph modules over the user's own modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import lpcompile
from lpcompile.passes.graph.module import follow, install, refresh, submodule


class Switching(nn.Module):
    """Another graph in evaluation, and a layer whose name is a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.add_module("lambda", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return getattr(self, "lambda")(x) if self.training else x * 2


def test_a_copy_runs_both_graphs_on_parameters_of_its_own() -> None:
    model, x = Switching(), torch.randn(2, 4)
    captured = copy.deepcopy(lpcompile.capture(model, x))
    assert torch.equal(captured(x), model(x))
    captured.eval()
    model.eval()
    assert torch.equal(captured(x), model(x))
    assert captured.get_parameter("a.weight") is not model.a.weight


def test_install_makes_plain_modules_on_the_way_and_keeps_persistence() -> None:
    root, layer = nn.Module(), nn.Linear(2, 2)
    install(root, "blocks.0", layer)
    install(root, "norm.mean", torch.zeros(2), persistent=False)
    install(root, "scale", nn.Parameter(torch.ones(1)))
    assert submodule(root, "blocks.0") is layer
    assert set(root.state_dict()) == {"scale", "blocks.0.weight", "blocks.0.bias"}
    assert dict(root.named_buffers()).keys() == {"norm.mean"}


def test_install_leaves_a_users_module_alone() -> None:
    root, layer = nn.Module(), nn.Linear(2, 2)
    install(root, "layer", layer)
    install(root, "layer.weight", nn.Parameter(torch.ones(2, 2)))
    install(root, "layer.deeper.weight", nn.Parameter(torch.ones(2, 2)))
    assert set(root.state_dict()) == {"layer.weight", "layer.bias"} and root.layer.weight is layer.weight


def test_refresh_takes_over_what_was_replaced_in_the_model() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    stage = nn.Module()
    install(stage, "0.0", model[0][0])
    links = follow(stage, model)
    model[0][0] = nn.Linear(2, 3)
    assert submodule(stage, "0.0") is not model[0][0]
    refresh(links)
    assert submodule(stage, "0.0") is model[0][0]


def test_submodule_finds_names_that_are_attributes_of_fx_and_names_what_is_missing() -> None:
    root = nn.Module()
    install(root, "graph.meta", nn.ReLU())
    assert isinstance(submodule(root, "graph.meta"), nn.ReLU) and submodule(root, "") is root
    with pytest.raises(AttributeError, match="has no layer 'code'"):
        submodule(root, "graph.code")
