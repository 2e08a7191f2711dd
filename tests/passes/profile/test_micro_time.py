"""The time of a micro-batch by its number of samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from lpcompile.passes.profile import micro_time
from lpcompile.passes.profile.micro_time import micro_times
from tests.passes.profile.prepare import prepared


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(3)))
    return model, prepared(model, torch.ones(8, 8))


def test_every_size_has_a_time_and_the_model_is_untouched(parts) -> None:
    model, (captured, units, tensors) = parts
    before = {name: t.clone() for name, t in model.state_dict().items()}
    found = micro_times(captured, units, tensors, (2, 4), threads=1)
    assert set(found) == {2, 4} and all(ms > 0 for ms in found.values())
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_times_come_from_the_cache_if_it_has_every_size(parts, monkeypatch) -> None:
    _, (captured, units, tensors) = parts
    first = micro_times(captured, units, tensors, (2, 4), threads=1)
    monkeypatch.setattr(micro_time, "whole_step", lambda *_: pytest.fail("measured again"))
    assert micro_times(captured, units, tensors, (4,), threads=1) == {4: first[4]}
    with pytest.raises(pytest.fail.Exception):
        micro_times(captured, units, tensors, (2, 8), threads=1)


@pytest.mark.parametrize(
    "odd", ["{", "[" * 100_000, '{"2": -1}', '{"2": NaN}', '{"2": 0}', '{"2": 1' + "0" * 400 + "}"]
)
def test_an_unreadable_cache_is_measured_anew(parts, tmp_path, odd) -> None:
    _, (captured, units, tensors) = parts
    micro_times(captured, units, tensors, (2,), threads=1)
    (file,) = tmp_path.rglob("*-micro.json")
    file.write_text(odd)
    assert micro_times(captured, units, tensors, (2,), threads=1)[2] > 0
