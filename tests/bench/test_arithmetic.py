"""From clocks to figures."""

from __future__ import annotations

import pytest

from lpcompile.bench.arithmetic import add_speedups, measure
from lpcompile.bench.contenders.ways import LIMIT, PLAIN, THREADS
from lpcompile.bench.request import BenchRequest
from lpcompile.bench.results import Bench, BenchRow
from tests.bench.small_bench import MACHINE


def answer(ends, cpu=None, thread=None, spent=None, **given):
    wall = ends[-1] - ends[0]
    return {
        "ends": ends,
        "cpu": cpu or wall,
        "thread": thread or wall,
        "spent": spent or {},
        "sent": 0,
        "peak": 0,
    } | given


def measured(name, blocks, K=2, batch=8):
    row = BenchRow(name)
    measure(row, blocks, BenchRequest("m", K=K, batch=batch))
    return row


def test_a_step_ends_when_all_ranks_are_through_with_it():
    blocks = [
        [answer([0.0, 1.0, 2.0]), answer([0.5, 1.2, 2.7])],
        [answer([10.0, 11.0, 12.0]), answer([10.0, 11.5, 12.0])],
    ]
    row = measured("penalty", blocks)
    assert row.step[0] == pytest.approx(1e3 * (0.7 + 1.5) / 2)  # of 0.7, 1.5, 1.5, 0.5
    assert row.steps == 4 and row.rate == pytest.approx(8e3 / row.step[0])


def test_trainings_of_the_limit_are_measured_on_their_own_and_count_k_times():
    found = Bench(BenchRequest("m", K=2, batch=8), MACHINE)
    plain = measured(PLAIN, [[answer([0.0, 1.0, 2.0])]])
    limit = measured(LIMIT, [[answer([0.0, 1.25, 2.5]), answer([0.7, 1.95, 3.2])]])
    twice = measured("penalty", [[answer([0.0, 0.5, 1.0])] * 2])
    found.rows = [plain, limit, twice]
    add_speedups(found)
    assert limit.step[0] == pytest.approx(1250) and limit.rate == pytest.approx(16 / 1.25)
    assert limit.rho == pytest.approx(1.6) and twice.rho == pytest.approx(2.0)
    assert twice.of_limit == pytest.approx(1.25) and limit.of_limit == pytest.approx(1.0)


def test_where_the_time_goes_adds_up_to_the_step():
    spent = {"forward": 0.2, "backward": 0.4, "transfer": 0.01}
    row = measured("penalty", [[answer([0.0, 0.5, 1.0], cpu=0.8, thread=0.7, spent=spent, sent=64, peak=2**20)] * 2])
    parts = row.ranks[0]["parts"]
    assert parts == pytest.approx({"forward": 100, "backward": 200, "python": 45, "transfer": 55, "wait": 100})
    assert sum(parts.values()) == pytest.approx(row.step[0]) and row.ranks[1]["idle"] == pytest.approx(0.2)
    assert row.peak == 2**20
    alone = measured(THREADS, [[answer([0.0, 1.0], cpu=2.0, thread=0.9)]])
    assert alone.ranks[0]["parts"] == pytest.approx({"python": 900, "transfer": 0, "wait": 100})
