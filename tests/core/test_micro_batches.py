"""What is done when, by torch; how many micro-batches there are; and what a plan expects of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import schedules

from lpcompile.core import micro_batches
from lpcompile.core.method import BatchFacts
from lpcompile.core.micro_batches import bubble_of
from lpcompile.errors import UsageError
from lpcompile.runtime.engine.schedules import default_schedule
from lpcompile.runtime.methods import METHODS
from tests.runtime.small import compiled

PIPELINES = [m.name for m in METHODS.values() if m.pipeline]


def order(method, K, micro):
    return micro_batches.order(METHODS[method], K, micro)


def default_micro(method, K, batch, **given):
    return micro_batches.default_micro(METHODS[method], K, batch, **given)


def checked_micro(method, *given, **named):
    return micro_batches.checked_micro(METHODS[method], *given, **named)


def words(line):
    return " ".join(f"{kind}{slot}" for kind, slot, _ in line)


def test_orders_are_torchs_own():
    assert [words(line) for line in order("gpipe", 2, 3)] == ["F0 F1 F2 B0 B1 B2"] * 2
    assert [words(line) for line in order("1f1b", 3, 4)] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    assert [words(line) for line in order("zb", 3, 4)] == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


def test_micro_batches_by_default():
    assert [default_micro("1f1b", K, 64) for K in (1, 2, 3, 4, 8)] == [1, 4, 4, 8, 8]
    assert (
        default_micro("zb", 3, 60) == 6 and default_micro("gpipe", 2, 8) == 2 and default_micro("gpipe", 2, None) == 4
    )
    assert default_micro("gpipe", 2, 8, free=False) == 1 and default_micro("1f1b", 2, 8, free=False) is None
    assert default_micro("zb", 2, 61) is None


def test_what_torchs_schedules_take_is_known():
    for method in PIPELINES:
        for K in range(1, 6):
            for micro in range(1, 13):
                if METHODS[method].accepts_micro(K, micro):
                    assert len(order(method, K, micro)) == K
                else:
                    with pytest.raises(UsageError, match=f"cannot run {micro} micro-batches on {K} stages: torch says"):
                        order(method, K, micro)


def test_numbers_that_cannot_be_are_refused():
    with pytest.raises(
        UsageError, match=r"'1f1b' on 2 stages needs 2 to 8 micro-batches, and a batch of 61 has no such"
    ):
        checked_micro("1f1b", 2, 61)
    with pytest.raises(UsageError, match=r"this model takes its batch of 8 whole"):
        checked_micro("1f1b", 2, 8, free=False)
    with pytest.raises(UsageError, match=r"micro=2: this model takes its batch of 8 whole.* pass micro=1"):
        checked_micro("gpipe", 2, 8, 2, free=False)


def test_an_older_torch_is_named(monkeypatch):
    micro_batches.order.cache_clear()
    monkeypatch.delattr(schedules.ScheduleGPipe, "_get_pipeline_order")
    monkeypatch.setattr(schedules.PipelineScheduleSingle, "_get_pipeline_order", lambda self: None)
    monkeypatch.delattr(schedules, "Schedule1F1B")
    with pytest.raises(
        UsageError, match=r"'gpipe' follows torch's ScheduleGPipe, which torch 2.* use torch 2.9 or newer"
    ):
        order("gpipe", 2, 4)
    with pytest.raises(
        UsageError, match=r"'1f1b' follows torch's Schedule1F1B, .*AttributeError.* use torch 2.9 or newer"
    ):
        order("1f1b", 2, 4)


@pytest.mark.parametrize(("method", "share"), [("bp", 1), ("gpipe", 1 / 2), ("1f1b", 1 / 2), ("zb", 1 / 6), ("fr", 0)])
def test_the_plan_knows_the_bubble(method, share):
    """Of two stages and two micro-batches: all of the other rank's work, a micro-batch's, a third of that, none."""
    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])
    x = torch.randn(8, 6)
    plan = compiled(model, 2, x, method=method).plan
    assert compiled(model, 2, x, method=method, plan=plan).plan.step == plan.step  # as the other ranks get it
    less, more = sorted(stage.work for stage in plan.stages)
    assert less > 0 and bubble_of(METHODS[method], BatchFacts(2, 8)) == share
    assert plan.step == pytest.approx(more + share * less, rel=1e-12)
    assert plan.lower_bound == pytest.approx(plan.step, rel=1e-6)
    if method == "bp":
        assert plan.rho == pytest.approx(1)


def test_a_plan_whose_batch_cannot_be_cut_has_no_schedule_of_its_own():
    model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(4)])
    plans = [compiled(model, 2, torch.randn(size, 6), method="1f1b").plan for size in (4, 7, 11)]
    assert [schedule and schedule.micro for schedule in map(default_schedule, plans)] == [2, 7, None]
