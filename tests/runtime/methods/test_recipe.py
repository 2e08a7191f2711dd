"""Recipes: texts and phases are the same thing, and what is wrong is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lpcompile.errors import UsageError
from lpcompile.runtime.methods import METHODS
from lpcompile.runtime.methods.recipe import (
    End,
    Phase,
    main_phase,
    recipe_of,
    recipe_text,
    recipes_of,
    shares,
    whole_rho,
)

AUX = sorted(name for name, m in METHODS.items() if m.aux)
LOCAL = sorted(name for name, m in METHODS.items() if not m.replay_buffers)
values = st.one_of(st.integers(0, 99), st.floats(1e-6, 1e6), st.sampled_from([True, False, None, "l2", "2bw", "rank"]))
options = st.dictionaries(st.sampled_from(["micro", "psi", "beta", "clip", "stash", "lockstep"]), values, max_size=3)
counts = st.builds(End, st.sampled_from(["step", "for", "left"]), st.integers(1, 10**6))
losses = st.builds(End, st.just("loss"), st.floats(1e-9, 1e9))
violations = st.builds(End, st.just("violation"), st.floats(1e-9, 10))


@st.composite
def recipes(draw):
    points = sorted(draw(st.sets(st.floats(0.01, 0.99), max_size=3)))
    found = []
    for point in points:
        method = draw(st.sampled_from(LOCAL))
        more = draw(st.lists(st.one_of(counts, losses, *([violations] if method in AUX else [])), max_size=2))
        found.append(Phase(method, draw(options), (End("share", point), *more)))
    return (*found, Phase(draw(st.sampled_from(sorted(METHODS))), draw(options)))


@given(recipes())
def test_a_printed_recipe_reads_back_as_itself(recipe):
    assert recipe_of(recipe_text(recipe)) == recipe


@given(st.lists(recipes(), min_size=1, max_size=3))
def test_a_list_of_recipes_is_told_apart_by_their_last_phases(several):
    assert recipes_of(",".join(map(recipe_text, several))) == several


@given(recipes(), st.sampled_from([None, 10, 1000]))
def test_the_shares_of_a_recipe_are_all_of_training(recipe, total):
    assert sum(shares(recipe, total)) == pytest.approx(1)
    assert main_phase(recipe, total) in recipe


def test_the_syntax_is_as_documented():
    found = recipe_of("warmup@violation<0.05|+200steps, 1f1b[micro=4, psi=l2]@0.3,stream[clip=0.5]@-50steps,zb")
    assert found == (
        Phase("warmup", {}, (End("violation", 0.05), End("for", 200))),
        Phase("1f1b", {"micro": 4, "psi": "l2"}, (End("share", 0.3),)),
        Phase("stream", {"clip": 0.5}, (End("left", 50),)),
        Phase("zb"),
    )
    assert recipe_of("penalty") == recipe_of(Phase("penalty")) == recipe_of([Phase("penalty")])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("penalti@0.5,stream", "no method 'penalti'; the closest is 'penalty'"),
        ("penalty@0.5", "nothing follows penalty@0.5; leave its end out"),
        ("penalty,stream", "penalty has no end, so stream never begins"),
        ("penalty@0.5,stream@0.3,zb", "must rise: 0.5, 0.3"),
        ("penalty@1.5,stream", "the share 1.5 of training"),
        ("penalty@soon,stream", "'soon' in 'penalty@soon' is no end of a phase"),
        ("penalty[micro]@0.5,stream", "'micro' in 'penalty\\[micro\\]@0.5' is no option; write OPTION=VALUE"),
        ("penalty[finish=3]", "finish is an option of the whole run"),
        ("1f1b@violation<0.1,penalty", "'1f1b' has no λ.*warmup@violation<0.1"),
        ("dgl-async@loss<1,zb", "no loss in common"),
        ("penalty@0steps,zb", "after 0 steps"),
        ("penalty[micro=2", "is no phase of training; write METHOD"),
        ("", "'' is no phase of training"),
    ],
)
def test_what_is_wrong_is_named(text, words):
    with pytest.raises(UsageError, match=words):
        recipe_of(text)


def test_a_whole_run_is_as_fast_as_the_times_of_its_phases():
    assert whole_rho([0.5, 0.5], [1.0, 2.0]) == pytest.approx(1 / 0.75)
    assert shares(recipe_of("penalty@50steps,stream@0.9,1f1b"), 100) == pytest.approx([0.5, 0.4, 0.1])
    assert shares(recipe_of("warmup@violation<0.05,penalty@0.9,1f1b")) == pytest.approx([0.0, 0.9, 0.1])
    assert main_phase(recipe_of("1f1b@0.3,stream@0.9,1f1b")).method == "stream"
