"""Channel sets: what must shrink together, and layers with fewer channels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.passes.auxnet.channels import MIN_CHANNELS, ChannelSet, channel_sets, thin


def found(model: nn.Module, x: torch.Tensor) -> list[ChannelSet]:
    captured = lpcompile.capture(model, x)
    return channel_sets(captured._lp_graphs[True], captured)


def names(nodes: list[Any]) -> list[str]:
    return [str(n.target) for n in nodes]


IMAGE = torch.zeros(2, 3, 8, 8)


def test_a_set_reaches_from_its_maker_over_norm_and_activation_to_its_taker() -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3))
    (only,) = found(model, IMAGE)  # what the last layer makes leaves the model
    assert (only.channels, only.step) == (16, 1)
    assert [names(n) for n in (only.makers, only.between, only.takers)] == [["0"], ["1", "2"], ["3"]]


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.end = (nn.Conv2d(c, d, 1) for c, d in ((3, 8), (8, 16), (16, 8), (8, 4)))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)
        return self.end(x + self.b(torch.relu(self.a(x))))


def test_layers_whose_results_are_added_shrink_together() -> None:
    stream, inner = found(Skip(), IMAGE)
    assert sorted(names(stream.makers)) == ["b", "stem"] and sorted(names(stream.takers)) == ["a", "end"]
    assert (names(inner.makers), names(inner.takers)) == (["a"], ["b"])


@pytest.mark.parametrize(("middle", "step"), [
    (nn.Conv2d(16, 16, 3, groups=16), 1), (nn.Conv2d(16, 16, 3, groups=4), 4), (nn.MaxPool2d(2), 1),
])  # fmt: skip
def test_groups_of_channels_stay_whole(middle: nn.Module, step: int) -> None:
    (only,) = found(nn.Sequential(nn.Conv2d(3, 16, 3), middle, nn.Conv2d(16, 8, 1)), IMAGE)
    assert only.step == step and names(only.between) == ["1"]


@pytest.mark.parametrize("middle", [nn.Softmax(1), nn.PReLU(16), nn.GLU(2), nn.Flatten(2)])
def test_layers_that_mix_or_move_channels_end_the_search(middle: nn.Module) -> None:
    last = nn.Conv2d(16, 8, 1) if not isinstance(middle, nn.Flatten) else nn.Conv1d(16, 8, 1)
    assert found(nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), middle, last), IMAGE) == []


def test_a_layer_that_runs_twice_is_left_alone() -> None:
    layer = nn.Linear(16, 16)
    assert found(nn.Sequential(nn.Linear(4, 16), layer, nn.ReLU(), layer, nn.Linear(16, 2)), torch.zeros(2, 4)) == []


@pytest.mark.parametrize(("channels", "step", "share", "left"), [
    (64, 1, 0.5, 32), (64, 1, 0.3, 16), (64, 1, 0.01, MIN_CHANNELS), (64, 1, 1.0, 64),
    (16, 1, 0.3, 5), (48, 12, 0.6, 24), (16, 4, 0.1, 4),
])  # fmt: skip
def test_wide_sets_shrink_by_whole_eights_and_none_to_nothing(
    channels: int, step: int, share: float, left: int
) -> None:
    assert ChannelSet(channels, step=step).thinned(share) == left


def test_a_thinned_network_still_runs_and_keeps_the_first_channels() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 16, 3, groups=4), nn.Conv2d(16, 8, 1))
    first = model[0].weight.detach().clone()
    thin(model[0], 8, None, None)
    thin(model[1], None, None, 8)
    thin(model[2], None, None, 8)
    thin(model[3], None, 8, None)
    assert model(torch.randn(2, 3, 8, 8)).shape == (2, 8, 4, 4)
    assert torch.equal(model[0].weight, first[:8]) and model[2].groups == 2
    assert model[1].running_mean.shape == (8,) and model[3].in_channels == 8


def test_conv1d_of_transformers_has_its_weight_the_other_way_round() -> None:
    from transformers.pytorch_utils import Conv1D

    model = nn.Sequential(Conv1D(16, 4), nn.GELU(), Conv1D(4, 16))
    (only,) = found(model, torch.zeros(2, 5, 4))
    assert (only.channels, names(only.makers), names(only.takers)) == (16, ["0"], ["2"])
    thin(model[0], 8, None, None)
    thin(model[2], None, 8, None)
    assert model(torch.zeros(2, 5, 4)).shape == (2, 5, 4) and model[0].weight.shape == (4, 8)
