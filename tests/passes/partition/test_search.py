"""The search behind the planner: a bound that refuses no step time that can be met, and the split that meets it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from lpcompile.passes.partition.bound import Found, Problem, relax
from lpcompile.passes.partition.search import decide, minimise, search


def problem_of(work: list[float], K: int, **options: object) -> Problem:
    """Units of this work, without AuxNets and messages."""
    sums = np.concatenate([[0.0], np.cumsum(work)])
    zero = np.zeros_like(sums)
    problem = Problem(
        position=np.arange(len(sums)), work=sums, arrival=zero, state=zero, crossing=zero, link=zero,
        forced=np.zeros(len(sums), dtype=bool), speeds=np.ones(K), limits=np.full(K, np.inf), loss=0.0,
        shares=np.zeros(K - 1), has_aux=False, chain=False,
    )  # fmt: skip
    return replace(problem, **options)  # type: ignore[arg-type]


WORK = [2.0, 3.0, 3.0, 4.0, 4.0, 5.0]  # the best three stages take 8: 2 3 3 | 4 4 | 5


@pytest.mark.parametrize(("T", "possible"), [(7.9, False), (8.0, True), (30.0, True)])
def test_a_step_time_is_refused_only_if_no_split_meets_it(T: float, possible: bool) -> None:
    assert (relax(problem_of(WORK, 3), T) is not None) is possible


def test_the_search_finds_the_split_and_says_that_it_looked_at_all() -> None:
    relaxation = relax(problem_of(WORK, 3), 8.0)
    assert relaxation is not None
    outcome = search(relaxation, beam=None)
    assert outcome.found is not None and outcome.found.cuts == [3, 5]
    assert decide(None, effort=0) == (None, True, 0), "what the bound refuses is proven"


def test_a_forced_cut_is_made() -> None:
    forced = np.zeros(len(WORK) + 1, dtype=bool)
    forced[2] = True
    relaxation = relax(problem_of(WORK, 3, forced=forced), 11.0)
    assert relaxation is not None
    found = search(relaxation, beam=None).found
    assert found is not None and 2 in found.cuts
    assert relax(problem_of(WORK, 3, forced=forced), 8.0) is None


def test_cuts_with_a_slow_message_are_left_out() -> None:
    link = np.array([0.0, 1, 1, 9, 1, 1, 0])
    problem = problem_of(WORK, 3, link=link)
    within = problem.within(8.0)
    assert within is not None and 3 not in within.position
    assert problem.within(9.0) is problem
    assert replace(problem, forced=np.arange(7) == 3).within(8.0) is None


def test_the_smallest_step_time_is_found_with_its_proof() -> None:
    problem = problem_of(WORK, 3)

    def price(found: Found) -> float:
        bounds = [0, *found.cuts, len(WORK)]
        return max(sum(WORK[a:b]) for a, b in pairwise(bounds))

    answer = minimise(lambda T: relax(problem, T), price, low=sum(WORK) / 3, high=sum(WORK))
    assert answer is not None
    found, proven = answer
    assert price(found) == 8.0 and proven == pytest.approx(8.0, rel=1e-8)
    assert minimise(lambda T: relax(problem, T), price, low=1.0, high=7.0) is None
