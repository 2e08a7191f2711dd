"""Costs from either source, their cache, and progress."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.errors import PlanError, UsageError
from lpcompile.passes.profile.profile import profile
from tests.passes.profile.prepare import prepared


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


def test_progress_shows_every_phase_in_order_and_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    seen = []
    lpcompile.parallelize(models.resnet20(), 3, example_inputs=torch.randn(4, 3, 32, 32), method="penalty",
                          progress=lambda share, what: seen.append((share, what)))  # fmt: skip
    shares = [share for share, _ in seen]
    assert shares == sorted(shares) and shares[0] == 0 and seen[-1] == (1.0, "")
    text = " ".join(what for _, what in seen)
    for phase in (
        "capturing the model",
        "a first step with 2 of 4 samples",
        "units, step 1",
        "AuxNet 2 of 2",
        "checking one step",
    ):
        assert phase in text


def test_progress_ends_where_compiling_fails():
    seen = []
    with pytest.raises(PlanError):
        lpcompile.parallelize(nn.Linear(4, 4), 9, example_inputs=torch.randn(4, 4),
                              progress=lambda share, what: seen.append(share))  # fmt: skip
    assert seen[-1] == 1.0


@pytest.mark.parametrize("odd", [
    {"units": []}, {"units": "none"}, {"loss": "much"}, {"part": None}, {"device": None, "whole_forward": -1.0},
    "[" * 100_000,
])  # fmt: skip
def test_a_cached_profile_with_odd_content_is_measured_anew(tmp_path, monkeypatch, odd):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    parts = prepared(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8))
    profile(*parts, cost="measured")
    file = next(tmp_path.iterdir())
    file.write_text(odd if isinstance(odd, str) else json.dumps({**json.loads(file.read_text()), **odd}))
    found = profile(*parts, cost="measured")
    assert "from the profile cache" not in found.notes and len(found.units) == len(parts[1])
