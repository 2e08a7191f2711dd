"""What units cost, from both sources."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.errors import UsageError
from lpcompile.passes import measure
from lpcompile.passes.cuts import cuts
from lpcompile.passes.profile import profile
from lpcompile.passes.units import units


def prepared(model, x):
    captured = lpcompile.capture(model, x)
    return captured, units(captured, cuts(captured)), [x]


def test_flops_are_those_of_the_layers():
    model, x = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 4, bias=False)), torch.randn(5, 8)
    first, second = profile(*prepared(model, x), cost="flops").units
    assert first.forward_flops == 2 * 5 * 8 * 16 and second.forward_flops == 2 * 5 * 16 * 4
    assert first.backward_flops == first.forward_flops  # the input needs no gradient
    assert second.backward_flops == 2 * second.forward_flops
    assert (first.parameters, second.parameters) == (128, 64)
    assert first.output_bytes == 5 * 16 * 4
    assert first.saved_bytes == 5 * 8 * 4 and second.saved_bytes == 5 * 16 * 4


def test_measured_units_add_up_to_the_whole_step(tmp_path, monkeypatch):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    torch.set_num_threads(1)
    found = profile(*prepared(models.resnet20(), torch.randn(8, 3, 32, 32)), cost="measured", threads=1)
    assert found.whole_forward and found.whole_backward
    assert found.raw_ratio == pytest.approx(1.0, abs=0.35)  # before scaling; loose, because test machines are noisy
    assert found.total == pytest.approx(found.whole_forward + found.whole_backward, rel=1e-6)  # scaled to the step
    assert all(u.forward > 0 for u in found.units) and sum(u.backward > 0 for u in found.units) > 8
    assert "units add up to" in found.notes[0]


def test_measured_profiles_are_cached_by_content(tmp_path, monkeypatch):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    parts = prepared(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8))
    first = profile(*parts, cost="measured")
    again = profile(*parts, cost="measured")
    assert again.units == first.units and "from the profile cache" in again.notes
    assert len(list(tmp_path.iterdir())) == 1
    next(tmp_path.iterdir()).write_text("half a file")
    assert "from the profile cache" not in profile(*parts, cost="measured").notes
    other = profile(parts[0], parts[1], [torch.randn(5, 8)], cost="measured")
    assert "from the profile cache" not in other.notes


def test_costs_must_come_from_a_known_source():
    parts = prepared(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8))
    with pytest.raises(UsageError, match="cost='guessed' is not one of measured, flops"):
        profile(*parts, cost="guessed")


def test_measuring_leaves_no_gradients_and_no_statistics_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    lpcompile.parallelize(model, 2, example_inputs=torch.randn(4, 4))
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_steps_that_take_seconds_are_measured_with_fewer_samples_and_scaled(tmp_path, monkeypatch):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    captured, found, tensors = prepared(models.resnet20(), torch.randn(8, 3, 32, 32))
    assert measure.affordable(captured, tensors, measure.SLOW) is tensors
    assert measure.affordable(captured, tensors, 2 * measure.SLOW)[0].shape == (2, 3, 32, 32)
    whole = profile(captured, found, tensors, cache=False, threads=1)
    monkeypatch.setattr(measure, "SLOW", 1e-3)
    fewer = profile(captured, found, tensors, cache=False, threads=1)
    assert "measured with 2 of 8 samples" in fewer.notes[0] and "samples" not in whole.notes[0]
    assert whole.total / 4 < fewer.total < 4 * whole.total  # loose, because test machines are noisy


def test_progress_ends_whenever_measuring_does(tmp_path, monkeypatch):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    seen = []
    parts = prepared(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8))
    profile(*parts, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (1, measure.MOST) and seen[-1] == (measure.MOST, measure.MOST)
