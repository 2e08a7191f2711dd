"""Whether others used the machine meanwhile, and waiting until they do not."""

from __future__ import annotations

from lpcompile.bench.quiet import Ticks, others, ticks, wait_for_quiet


def test_what_others_use_is_what_is_used_and_not_our_own():
    before = Ticks(all=1000, used=100, own=50)
    assert others(before, Ticks(1200, 300, 150)) == 0.5
    assert others(before, Ticks(1200, 200, 150)) == 0.0
    assert others(before, None) == others(None, before) == others(before, before) == 0.0


def test_this_process_and_its_children_are_our_own():
    before = ticks()
    total = sum(i * i for i in range(3_000_000))
    after = ticks()
    assert total and before is not None and after is not None
    assert after.own > before.own and after.used >= before.used and after.all > before.all


def test_a_patient_bench_waits_until_others_are_quiet_three_looks_in_a_row():
    busy = [0.9, 0.0, 0.5, 0.01, 0.0, 0.02, 0.9]
    said, slept, now = [], [], [0.0, 0.0]

    def look():
        return Ticks(100 * len(slept), sum(100 * b for b in busy[: len(slept)]), 0.0)

    wait_for_quiet(said.append, look, slept.append)
    assert len(slept) == 6 and said == ["waiting for a quiet machine: others use 90 % of its cores"], now
