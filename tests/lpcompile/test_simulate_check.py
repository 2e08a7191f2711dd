"""Predicted against measured, on a network small enough for a test: that it works, not how well it fits."""

from __future__ import annotations

import pytest

from lpcompile.simulate_check import Checked, check, check_text, measured_step


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
