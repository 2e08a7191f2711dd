"""What units cost, from both sources."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.errors import PlanError, UsageError
from lpcompile.passes.auxnet.measure import MIN_REPEATS, REPEATS, effort_for
from lpcompile.passes.profile import measure, samples
from lpcompile.passes.profile.profile import profile
from lpcompile.passes.split.cuts import cuts
from lpcompile.passes.split.units import units


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
    whole = profile(captured, found, tensors, cache=False, threads=1)
    for name in ("SLOW_STEP", "TELLING_STEP"):
        monkeypatch.setattr(samples, name, 1e-3)
    fewer = profile(captured, found, tensors, cache=False, threads=1)
    assert "measured with 2 of 8 samples" in fewer.notes[0] and "samples" not in whole.notes[0]
    assert whole.total / 4 < fewer.total < 4 * whole.total  # loose, because test machines are noisy


def fake_steps(fixed, each):
    """A model whose steps take so many ms, and so many more for each sample; and what it was run with."""
    seen = []

    def step(tensors):
        seen.append(len(tensors[0]))
        return fixed + each * seen[-1]

    return seen, step


def test_no_step_of_all_samples_is_run_to_learn_that_it_takes_long():
    captured, _, tensors = prepared(models.resnet20(), torch.randn(32, 3, 32, 32))
    seen, step = fake_steps(0, samples.SLOW_STEP / 2)
    found = samples.affordable(captured, tensors, step)
    assert seen == [2] and len(found.tensors[0]) == 2  # BatchNorm needs two
    assert found.step == pytest.approx(samples.SLOW_STEP)
    seen, step = fake_steps(0, samples.SLOW_STEP / 16)
    found = samples.affordable(captured, tensors, step)
    assert max(seen) < 32 and len(found.tensors[0]) == 5  # a third of SLOW_STEP


def test_overhead_is_not_taken_for_work():
    captured, _, tensors = prepared(models.resnet20(), torch.randn(32, 3, 32, 32))
    seen, step = fake_steps(samples.SLOW_STEP / 20, samples.SLOW_STEP / 50)  # 16 times the first step would be too slow
    found = samples.affordable(captured, tensors, step)
    assert found.tensors is tensors and seen == [2, 2, 8]


def test_one_sample_is_enough_without_batch_norm_and_all_are_run_where_the_batch_is_fixed():
    slow = fake_steps(0, samples.SLOW_STEP)[1]
    captured, _, tensors = prepared(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(4, 8))
    assert len(samples.affordable(captured, tensors, slow).tensors[0]) == 1
    fixed = lpcompile.capture(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), Fixed()), torch.randn(4, 8))
    assert not fixed._lp.batch_free
    assert samples.affordable(fixed, tensors, slow).tensors is tensors


class Fixed(nn.Module):
    def forward(self, x):
        return x + torch.arange(float(x.shape[0] ** 2)).sum()


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
    whole = measure.limits(samples.Affordable([], 1000.0, warm=False))  # such steps need no scaling: keep them exact
    assert whole.max_whole_steps == measure.MAX_STEPS and whole.warmup and whole.seconds == measure.MEASURING_SECONDS
    repeats = [effort_for(ms).repeats for ms in (0.0, 10.0, 400.0, 1000.0, 1e6)]
    assert repeats == sorted(repeats, reverse=True) and (repeats[0], repeats[-1]) == (REPEATS, MIN_REPEATS)


def test_progress_shows_every_phase_in_order_and_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    seen = []
    lpcompile.parallelize(models.resnet20(), 3, example_inputs=torch.randn(4, 3, 32, 32),
                          progress=lambda share, what: seen.append((share, what)))  # fmt: skip
    shares = [share for share, _ in seen]
    assert shares == sorted(shares) and shares[0] == 0 and seen[-1] == (1.0, "")
    text = " ".join(what for _, what in seen)
    for phase in (
        "capturing the model",
        "a first step with 2 of 4 samples",
        "units, step 7",
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
