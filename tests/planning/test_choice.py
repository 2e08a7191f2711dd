"""A plan says in one sentence what its method means, and why the default is what it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lpcompile.core.plan import Plan
from lpcompile.core.staleness import mean_staleness
from lpcompile.core.tables import size
from lpcompile.planning.choice import choice, why_default
from lpcompile.planning.rank_memory import rank_memory
from lpcompile.runtime.engine.schedules import default_schedule
from lpcompile.runtime.methods import METHODS
from tests.simulate.even_plan import even_plan

SIXTEEN = "(16 samples in each micro-batch, for BatchNorm or what is like it; a larger micro=... takes fewer)"


@pytest.mark.parametrize(
    ("K", "micro", "batch", "norm", "words"),
    [
        (2, 3, 64, False, "can change its accuracy; no rank waits for another"),
        (2, 2, 64, True, "ranks wait for 14 % of a step, and more, smaller micro-batches would take longer"),
        (
            4,
            2,
            32,
            True,
            f"up to 112 {SIXTEEN}",
        ),
        (
            4,
            4,
            64,
            True,
            f"with a larger batch, up to 112 {SIXTEEN}",
        ),
        (4, 4, 8, False, "and for less with a larger batch, up to 14"),
    ],
)
def test_the_default_says_why_it_is_taken_and_what_would_fill_its_ranks(K, micro, batch, norm, words):
    found = why_default(K, micro, batch, norm)
    assert "no optimizer, learning rate or schedule" in found and found.endswith(words)


@pytest.mark.parametrize("method", [name for name in sorted(METHODS) if METHODS[name].delayed])
def test_the_delay_in_the_sentence_is_that_of_the_schedule(method):
    plan = even_plan(3, method)
    late = ", ".join(f"{n:.2g}" for n in mean_staleness(default_schedule(plan)))
    assert f"gradients late by {late} steps on ranks 0 to 2, which can cost accuracy" in plan.choice


@pytest.mark.parametrize("method", ["stream", "pipedream", "zbh2"])
def test_the_memory_in_the_sentence_covers_all_graphs_that_a_rank_keeps(method):
    plan = replace(even_plan(4, method, batch=128), micro=2)
    kept = max(rank_memory(plan, default_schedule(plan)))
    whole = max(stage.memory_bytes for stage in plan.stages)
    assert f"at most {size(max(kept, whole))} a rank" in choice(plan)
    assert (kept > 1.5 * whole) == METHODS[method].delayed


@pytest.mark.parametrize(("method", "words"), [
    ("penalty", "stages start from predicted λ, which can cost accuracy"), ("penalty", "extra parameters in AuxNets"),
    ("penalty-stored", "stages start from stored λ"), ("1f1b", "plain training's gradients, at most"),
    ("dgl", "a loss of its own for every stage"),
])  # fmt: skip
def test_every_method_says_what_it_costs(method, words):
    assert words in choice(even_plan(2, method))


def test_a_model_that_is_tied_to_its_batch_is_not_said_to_have_the_choice():
    plan = replace(even_plan(3, "zbh2"), batch_free=False, micro=0)
    assert "the whole batch at once" in choice(plan)
    assert choice(plan).endswith("takes its batches whole and they cannot be cut into micro-batches (see the notes)")


def test_a_recipe_is_not_described_by_its_longest_phase_alone():
    found = choice(replace(even_plan(2, "zbh2"), recipe="zbh2@0.6,stream"))
    assert found.endswith("this is the longest phase of zbh2@0.6,stream, and predictions below are for it alone")
    assert "can change its accuracy" not in found


def test_the_sentence_stands_in_the_plan_and_survives_saving():
    plan = even_plan(3, "zbh2")
    assert Plan.from_json(plan.to_json()) == plan and f"\nmethod: {plan.choice}\n" in str(plan)
    assert even_plan(1, "bp").choice == ""
