"""The measured profile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.core.cost import Profile
from lpcompile.passes.profile import measure, samples
from lpcompile.passes.profile.profile import profile
from tests.passes.profile.prepare import prepared


def test_measured_units_add_up_to_the_whole_step(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    for attempt in range(3):  # test machines are noisy
        monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path / str(attempt)))
        found = profile(*prepared(models.resnet20(), torch.randn(8, 3, 32, 32)), cost="measured", threads=1)
        assert found.whole_forward and found.whole_backward
        if found.raw_ratio == pytest.approx(1.0, abs=0.35):
            break
    assert found.raw_ratio == pytest.approx(1.0, abs=0.35)  # before scaling
    assert found.total == pytest.approx(found.whole_forward + found.whole_backward, rel=1e-6)  # scaled to the step
    assert all(u.forward > 0 for u in found.units) and sum(u.backward > 0 for u in found.units) > 8
    assert "units add up to" in found.notes[0]


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
    whole = profile(captured, found, tensors, cache=False, threads=1)
    for name in ("SLOW_STEP", "TELLING_STEP"):
        monkeypatch.setattr(samples, name, 1e-3)
    fewer = profile(captured, found, tensors, cache=False, threads=1)
    assert "measured with 2 of 8 samples" in fewer.notes[0] and "samples" not in whole.notes[0]
    assert whole.total / 4 < fewer.total < 4 * whole.total  # loose, because test machines are noisy


def test_long_steps_are_few_and_short_ones_many():
    assert measure.limits(samples.Affordable([], 10.0)).min_steps == measure.MIN_STEPS
    for ms in (1000.0, samples.SLOW_STEP, 2 * samples.SLOW_STEP, 10 * samples.SLOW_STEP):
        found = measure.limits(samples.Affordable([], ms, fewer=True))
        assert (
            2 <= found.min_steps <= 3
            and found.seconds <= 4
            and not found.warmup
            and found.max_whole_steps < found.min_steps
        )
        assert measure.limits(samples.Affordable([], ms, fewer=True, warm=False)).warmup == 1
    whole = measure.limits(samples.Affordable([], 500.0, warm=False))  # such steps need no scaling: keep them exact
    assert (
        whole.max_whole_steps == measure.MAX_STEPS
        and whole.warmup
        and whole.seconds == measure.UNITS_SHARE * measure.MEASURING_SECONDS
    )


@pytest.mark.parametrize("ms", (400.0, 700.0, samples.SLOW_STEP))
def test_steps_of_all_samples_take_about_the_time_that_there_is(ms):
    """Divided and undivided steps, however long one is."""
    found = measure.limits(samples.Affordable([], ms))
    undivided = min(found.max_whole_steps, found.min_steps + found.warmup)
    assert (found.min_steps + found.warmup + undivided) * ms <= 1e3 * found.seconds


class Ticks:
    """A clock that moves one ms at each look."""

    def __init__(self, device: torch.device) -> None:
        self.now = 0

    def stamp(self) -> int:
        self.now += 1
        return self.now

    def ms(self, start: int, end: int) -> float:
        return float(end - start)


def ticked(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Profile:
    """Three units, measured with that clock."""
    monkeypatch.setattr(measure, "Clock", Ticks)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    return measure.measured_profile(*prepared(model, torch.randn(4, 8)), seconds=1e-6, **options)


def test_units_are_scaled_to_the_undivided_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unit takes one tick where the whole model takes one, so each is a third of it."""
    found = ticked(monkeypatch)
    assert (found.whole_forward, found.whole_backward) == (1.0, 1.0)
    assert [u.forward for u in found.units] == pytest.approx([1 / 3] * 3)
    assert [u.backward for u in found.units] == pytest.approx([1 / 3] * 3)
    assert [u.forward_spread for u in found.units] == [0.0] * 3
    assert found.raw_ratio == pytest.approx(3.0) and "3.000 of the undivided step (3 steps)" in found.notes[0]


def test_times_are_for_the_whole_mini_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    found = ticked(monkeypatch, part=0.25)
    assert (found.whole_forward, found.whole_backward, found.part) == (4.0, 4.0, 0.25)
    assert sum(u.forward for u in found.units) == pytest.approx(4.0)
    assert "measured with micro-batches of 4 samples" in found.notes[0]


def test_compiled_units_are_timed_in_their_compiled_form_and_kept_apart_from_eager_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    ran: list[nn.Module] = []

    def compiled(part: nn.Module, dynamic: bool) -> Any:
        return lambda *given: ran.append(part) or part(*given)

    monkeypatch.setattr(torch, "compile", compiled)
    given = prepared(nn.Sequential(*(nn.Linear(4, 4) for _ in range(3))), torch.randn(4, 4))
    found = profile(*given, compiled=True, seconds=0.01)
    assert len({id(part) for part in ran}) == len(found.units) == 3 and found.raw_ratio == 1.0
    assert "compiled by torch.compile" in found.notes[0]
    assert "from the profile cache" in profile(*given, compiled=True).notes[-1]
    assert "from the profile cache" not in profile(*given, seconds=0.01).notes


def test_units_that_cannot_be_compiled_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = type("CppCompileError", (Exception,), {"__module__": "torch._inductor.exc"})

    def fails(part: nn.Module, dynamic: bool) -> Any:
        def call(*given: Any) -> Any:
            raise failed("no g++")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    with pytest.raises(lpcompile.LpError, match=r"the units of this model \(no g\+\+\); it needs a C\+\+ compiler"):
        ticked(monkeypatch, compiled=True)


def test_the_number_of_threads_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    ticked(monkeypatch, threads=before + 1)
    assert torch.get_num_threads() == before


def test_the_hosts_clock_counts_in_ms() -> None:
    clock = measure.Clock(torch.device("cpu"))
    assert clock.ms(1.0, 1.5) == 500.0 and clock.ms(clock.stamp(), clock.stamp()) >= 0.0
