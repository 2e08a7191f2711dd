"""Predicted against measured, on a network small enough for a test: that it works, not how well it fits."""

from __future__ import annotations

import pytest

from lpcompile.simulate.calibrate import MESSAGE, calibrate, spec_of
from lpcompile.simulate.check import Checked, check, check_text, measured_step
from lpcompile.simulate.device_spec import from_json


def event(rank, step, begin, length, kind):
    return {"ph": "X", "pid": rank, "ts": 1e3 * begin, "dur": 1e3 * length, "cat": kind, "args": {"step": step}}


def test_a_step_lasts_from_one_begin_to_the_next_on_the_slowest_rank():
    events = [
        one
        for rank, period in ((0, 10), (1, 11))
        for step in range(6)
        for one in (
            event(rank, step, step * period, 4, "compute"),
            event(rank, step, step * period + 4, 2, "wait"),
            event(rank, step, step * period + 6, 3, "compute"),
        )
    ]
    assert measured_step(events, 2, 1, 5) == (pytest.approx(11), pytest.approx((7, 7)))


def test_every_row_says_how_far_off_it_is():
    rows = [Checked("a", "bp", 2, 10.8, 10.0, (5.0, 5.0), (4.0, 4.0)), Checked("a", "zb", 2, 30.0, 20.0, (), ()),
            Checked("a", "gpipe", 2, 0.0, 0.0, (), (), "cannot be cut")]  # fmt: skip
    text = check_text(rows)
    assert "+8 %" in text and "+50 %" in text and "cannot be cut" in text
    assert text.endswith("1 of 2 within 10 %; at most 50 % off")


def test_a_small_network_is_measured_and_predicted():
    (row,) = check(["resnet20"], methods=["penalty-stored"], batch=8, steps=4)
    assert not row.why
    assert row.measured > 0 and row.predicted > 0 and len(row.computed) == 2
    assert row.measured >= max(row.computed) * 0.5


def test_a_spec_is_made_of_what_was_measured():
    """Together all take 1.25 times as long; two messages of 10 ms cost 5 ms of compute; 8 MiB in 9 ms and latency 1."""
    times = {"alone": 80.0, "together": 100.0, "during": 105.0, "ping": 1.0, "message": 10.0, "add": 3.0, "unit": 0.05}
    spec = spec_of(times, 2)
    assert spec.scale == pytest.approx(0.8) and spec.overlap == pytest.approx(0.75)
    assert spec.inside.time(4 * MESSAGE) == pytest.approx(10.0)
    assert spec.overhead_us == pytest.approx(50) and spec.memory_gb_per_s == pytest.approx(4 * MESSAGE / 1e6)


def test_this_machine_can_be_measured():
    spec = calibrate(2, rounds=3)
    assert from_json(spec.to_json()) == spec and spec.gpus == 2
    assert 0 < spec.scale <= 1 and 0 <= spec.overlap <= 1
