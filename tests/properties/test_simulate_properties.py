"""Whatever the costs: nobody is faster than its work, and waiting never makes work shorter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpcompile.planning.replan import replan
from lpcompile.runtime.engine.schedules import default_schedule
from lpcompile.runtime.methods import METHODS
from lpcompile.simulate.device_spec import LinkSpec
from lpcompile.simulate.op_costs import costs_of
from lpcompile.simulate.step import simulate
from tests.simulate.even_plan import IDEAL, even_plan

COSTS = st.lists(st.floats(0.1, 20.0), min_size=6, max_size=14)


def uneven(costs):
    base = even_plan(1, "bp", units=len(costs), batch=96)
    units = tuple(replace(u, forward=c, backward=2 * c) for u, c in zip(base.units, costs, strict=True))
    return replace(base, units=units, serial=3 * sum(costs))


@settings(max_examples=25, deadline=None)
@given(costs=COSTS, K=st.integers(1, 6), method=st.sampled_from(sorted(METHODS)), slow=st.floats(0.01, 100.0))
def test_a_step_lasts_as_long_as_its_busiest_rank_and_no_longer_than_all_work_in_a_row(costs, K, method, slow):
    plan = replan(uneven(costs), K, method)
    device = replace(IDEAL, inside=LinkSpec(slow, 10.0))
    found = simulate(plan, device)
    price, schedule = costs_of(plan, device, found.micro), default_schedule(plan)
    messages = [i for rank in schedule.ranks for i in rank if i.op in ("send", "offer")]
    sending = sum(device.inside.time(price.message(i.ref.kind, i.ref.boundary)) for i in messages)
    assert max(found.busy) <= found.step * (1 + 1e-6)
    assert found.step <= (sum(found.busy) + sending) * (1 + 1e-3)
    assert all(-1e-6 <= idle <= 1 for idle in found.idle)


@settings(max_examples=15, deadline=None)
@given(costs=COSTS, K=st.integers(2, 4), method=st.sampled_from(sorted(METHODS)))
def test_a_device_twice_as_fast_in_everything_takes_half_the_time(costs, K, method):
    plan = replan(uneven(costs), K, method)
    one = replace(IDEAL, memory_gb_per_s=10, inside=LinkSpec(1, 20.0), overhead_us=10)
    two = replace(IDEAL, memory_gb_per_s=20, inside=LinkSpec(2, 10.0), overhead_us=5, scale=2.0)
    assert simulate(plan, two).step == pytest.approx(simulate(plan, one).step / 2, rel=1e-3)
