"""The traits of methods: consistent with each other and with what their schedules do."""

from __future__ import annotations

import pytest

from lpcompile.core.method import BatchFacts
from lpcompile.core.micro_batches import micro_for
from lpcompile.core.staleness import staleness
from lpcompile.runtime.engine.schedules import default_schedule, schedule_of
from lpcompile.runtime.engine.settings import Settings
from lpcompile.runtime.methods import METHODS
from tests.simulate.even_plan import even_plan


def ops(name, K=3):
    schedule = default_schedule(even_plan(K, method=name))
    assert schedule is not None
    return {item.op for rank in schedule.ranks for item in rank}, schedule


@pytest.mark.parametrize("name", METHODS)
def test_traits_say_what_the_schedule_does(name):
    method, (found, schedule) = METHODS[name], ops(name)
    assert ("aux_forward" in found) == (method.aux == "auxnet")
    assert ("recall" in found) == (method.aux == "store")
    assert ("head" in found) == method.heads
    assert ("draw" in found) == method.replay_buffers
    assert ("replay" in found) == method.reruns_stage
    assert ("backward_weight" in found) == method.splits_backward
    assert ("kappa" in found) == method.kappa
    if method.exact or method.delayed:
        assert any(staleness(schedule)) == method.delayed and not (method.exact and method.delayed)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_line_for_help_texts_and_runs_a_batch_of_64(name):
    method = METHODS[name]
    assert method.name == name and 20 < len(method.summary) < 130 and not method.summary.endswith(".")
    micro = method.default_micro(BatchFacts(4, 64))
    assert micro is not None and method.accepts_micro(4, micro) and 0 <= method.bubble(4, micro) <= 1
    assert len(method.table_1) in (0, 7)


def test_values_are_kept_per_sample_where_a_store_or_stored_multipliers_are():
    assert METHODS["penalty-stored"].keeps_samples("auxnet")
    assert METHODS["lagrangian"].keeps_samples("stored") and not METHODS["lagrangian"].keeps_samples("auxnet")
    assert not METHODS["penalty"].keeps_samples("stored")


@pytest.mark.parametrize("name", ["1f1b", "penalty", "multiplier", "pipedream", "dgl"])
def test_the_simulated_schedule_is_the_one_that_the_trainer_builds(name):
    plan, method = even_plan(3, method=name), METHODS[name]
    assert default_schedule(plan) == schedule_of(plan, method, Settings(), micro_for(plan, method))
