"""The analytic profile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lpcompile.passes.graph.liveness import liveness
from lpcompile.passes.profile.flops import FLOPS_PER_MS, flops_profile, parameter_sizes
from lpcompile.passes.profile.profile import profile
from tests.passes.profile.prepare import prepared


def test_flops_are_those_of_the_layers():
    model, x = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False)), torch.randn(5, 8)
    first, second = profile(*prepared(model, x), cost="flops").units
    assert first.forward_flops == 2 * 5 * 8 * 16 and second.forward_flops == 2 * 5 * 16 * 4
    assert first.backward_flops == first.forward_flops  # the input needs no gradient
    assert second.backward_flops == 2 * second.forward_flops
    assert (first.parameters, second.parameters) == (128, 64)
    assert first.output_bytes == 5 * 16 * 4
    assert first.saved_bytes == 5 * 8 * 4 and second.saved_bytes == 5 * 16 * 4


def test_a_nominal_device_turns_flops_into_ms() -> None:
    captured, units, _ = prepared(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)), torch.randn(5, 8))
    found = flops_profile(captured, units)
    assert (found.cost, found.whole_forward) == ("flops", None)
    assert [u.forward * FLOPS_PER_MS for u in found.units] == pytest.approx([u.forward_flops for u in found.units])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mid, self.head = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.mid(self.embed(ids)))


def test_a_tied_parameter_counts_in_every_unit_that_uses_it() -> None:
    model = Tied()
    captured, units, _ = prepared(model, torch.randint(0, 9, (2, 5)))
    sizes = parameter_sizes(model, liveness(captured._lp_graphs[True], model), units)
    assert sizes == [(36, 144), (20, 80), (36, 144)]


def test_the_last_units_output_is_the_models() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    captured, units, _ = prepared(model, torch.randn(5, 8))
    assert [u.output_bytes for u in flops_profile(captured, units).units] == [4 * 5 * 16, 4 * 5 * 4]
