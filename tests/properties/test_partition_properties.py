"""The planner against brute force: every cut and every AuxNet placement, priced straight from the equations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lpcompile.core.cost import Profile, UnitCost
from lpcompile.errors import PlanError
from lpcompile.passes.partition import bound as partition_bound
from lpcompile.passes.partition import search as partition_search
from lpcompile.passes.partition.bound import Problem, Relaxation, Window
from lpcompile.passes.partition.evaluate import Link, Partition
from lpcompile.passes.partition.options import Pins
from lpcompile.passes.partition.partition import _problem
from lpcompile.planning.partition import auto_stages, evaluate, partition
from lpcompile.runtime.methods import METHODS

# A few round values make ties, zero-cost units and equal messages common.
MS = st.one_of(st.sampled_from([0.0, 1.0, 2.0, 7.5]), st.floats(0.01, 10))
BYTES = st.one_of(st.sampled_from([0, 100, 1000]), st.integers(0, 3000))


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    size = draw(st.integers(1, 9))
    units = tuple(
        UnitCost(
            f"block{at // 3}.{at % 3}",
            draw(MS),
            draw(MS),
            parameter_bytes=draw(BYTES),
            saved_bytes=draw(BYTES),
            output_bytes=draw(BYTES),
        )
        for at in range(size)
    )
    return Profile(units, cost="flops", device="cpu", loss=draw(st.sampled_from([0.0, 0.0, 3.0])))


SHARES = st.sampled_from([0.0, 0.1, 0.1, 0.5, 1.0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Profile, int, dict[str, Any]]:
    profile = draw(profiles())
    size = len(profile.units)
    K = draw(st.integers(1, min(4, size)))
    options: dict[str, Any] = {
        "method": draw(st.sampled_from(["penalty", "lagrangian", "multiplier", "multiplier", "gpipe"])),
        "aux_budget": draw(st.one_of(SHARES, st.lists(SHARES, min_size=K - 1, max_size=K - 1))),
        "aux": draw(st.sampled_from(["derived", "derived", "tied", "recursive"])),
        "state_factor": draw(st.sampled_from([3.0, 1.0])),
    }
    if draw(st.booleans()):
        options["speeds"] = draw(st.lists(st.sampled_from([0.5, 1.0, 1.0, 3.0]), min_size=K, max_size=K))
    if draw(st.booleans()):
        options["link"] = Link(draw(st.sampled_from([100.0, 1000.0])), draw(st.sampled_from([0.0, 0.5])))
    if draw(st.booleans()):
        # half a byte off: no split lies on the limit, where rounding would decide
        limit = st.integers(1, 30).map(lambda share: 1000 * share + 0.4567)
        options["memory_limit"] = draw(st.one_of(limit, st.lists(limit, min_size=K, max_size=K)))
    if draw(st.booleans()):
        names = [unit.name for unit in profile.units]
        cut = draw(st.lists(st.sampled_from(names), max_size=2))
        first, last = sorted(draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2)))
        options["pins"] = Pins(tuple(cut), ((names[first], names[last]),) if draw(st.booleans()) else ())
    return profile, K, options


def brute_price(
    profile: Profile,
    cuts: tuple[int, ...],
    above: tuple[bool, ...],
    method: str,
    aux_budget: float | list[float],
    aux: str,
    state_factor: float,
    speeds: list[float] | None = None,
    link: Link | None = None,
    **_: Any,
) -> tuple[float, list[float]]:
    units, K = profile.units, len(cuts) + 1
    s = speeds or [1.0] * K
    b = [0, *cuts, len(units)]
    chain = method in ("penalty", "lagrangian") and aux != "recursive"
    r = aux_budget if isinstance(aux_budget, list) else [aux_budget] * (K - 1)
    r = [0.0 if method == "gpipe" else share for share in r] + [0.0]
    F = [sum(u.forward for u in units[b[k] : b[k + 1]]) for k in range(K)]
    B = [sum(u.backward for u in units[b[k] : b[k + 1]]) for k in range(K)]
    M = [sum(state_factor * u.parameter_bytes + u.saved_bytes for u in units[b[k] : b[k + 1]]) for k in range(K)]
    out = [0, *(units[c - 1].output_bytes for c in cuts), 0]
    t = [0.0] + [link.latency_ms + out[k] / link.bytes_per_ms if link else 0.0 for k in range(1, K)]
    A, finish, memory = 0.0, [], []
    for k in range(K):
        hosts_lower = k >= 1 and above[k - 1]
        hosts_own = k < K - 1 and not above[k]
        if chain and k >= 1:
            if hosts_lower:
                A += (t[k - 1] if k >= 2 else 0.0) + r[k - 1] * F[k - 1] / s[k]
            else:
                A += r[k - 1] * F[k - 1] / s[k - 1] + t[k]
        done = A + (F[k] + B[k]) / s[k]
        if hosts_own:
            done += r[k] * (F[k] + B[k]) / s[k]
        if hosts_lower:
            done += r[k - 1] * (B[k - 1] if chain else F[k - 1] + B[k - 1]) / s[k]
        if k == K - 1:
            done += profile.loss / s[k]
        finish.append(done)
        shares = (r[k] * M[k] if hosts_own else 0) + (r[k - 1] * M[k - 1] if hosts_lower else 0)
        memory.append(M[k] + out[k] + out[k + 1] + shares)
    return max(*finish, *t), memory


def placements(K: int, options: dict[str, Any]) -> list[tuple[bool, ...]]:
    """Below or above, for each AuxNet; where its weights are, if they are tied."""
    tied = options["aux"] == "tied" and options["method"] != "gpipe"
    return list(itertools.product([False] if tied else [False, True], repeat=K - 1))


def brute_force(profile: Profile, K: int, options: dict[str, Any]) -> float:
    """The least step; inf if nothing fits."""
    size, best = len(profile.units), math.inf
    pins = options.get("pins") or Pins()
    names = [unit.name for unit in profile.units]
    wanted = {names.index(name) + 1 for name in pins.cut_after} - {size}
    spans = [(names.index(span[0]), names.index(span[1])) for span in pins.together]
    banned = {c for first, last in spans for c in range(first + 1, last + 1)}
    limit = options.get("memory_limit", math.inf)
    limits = limit if isinstance(limit, list) else [limit] * K
    for cuts in itertools.combinations(range(1, size), K - 1):
        if wanted <= set(cuts) and not banned & set(cuts):
            for above in placements(K, options):
                step, memory = brute_price(profile, cuts, above, **options)
                if all(m <= most for m, most in zip(memory, limits, strict=True)):
                    best = min(best, step)
    return best


def solve(profile: Profile, K: int, options: dict[str, Any]) -> Partition | None:
    try:
        return partition(profile, K, **options)
    except PlanError:
        return None


@settings(max_examples=300, deadline=None)
@given(cases())
def test_the_planner_equals_brute_force(case: tuple[Profile, int, dict[str, Any]]) -> None:
    check_against_brute_force(case)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_it_does_so_when_beams_fail_and_every_label_is_challenged(case: tuple[Profile, int, dict[str, Any]]) -> None:
    """On models this small the beams see everything; here they see one label, so that the exact search must answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition_search, "BEAMS", (1,))
        patch.setattr(partition_search, "WORTHWHILE", 0)
        check_against_brute_force(case)


def check_against_brute_force(case: tuple[Profile, int, dict[str, Any]]) -> None:
    profile, K, options = case
    best, found = brute_force(profile, K, options), solve(*case)
    assert (found is None) == (best == math.inf)
    if found is not None:
        assert found.step == pytest.approx(best, rel=2e-9, abs=1e-12)
        assert found.lower_bound <= best * (1 + 1e-12)
        assert found.gap <= 2e-9


@settings(max_examples=200, deadline=None)
@given(cases(), st.sampled_from([0.0, 0.2, 0.5, 0.8, 1.0]))
def test_the_search_alone_decides_as_brute_force_does(case: tuple[Profile, int, dict[str, Any]], share: float) -> None:
    """The bounds are so tight on small models that they hide what the search drops: take them away."""
    profile, K, options = case
    assume(K > 1)  # one stage leaves the search nothing to do
    best = brute_force(profile, K, {**options, "memory_limit": math.inf, "pins": None})
    worst = max(
        brute_price(profile, cuts, above, **options)[0]
        for cuts in itertools.combinations(range(1, len(profile.units)), K - 1)
        for above in placements(K, options)
    )
    T = best + share * (worst - best) * 0.1
    problem = _problem(
        profile,
        K,
        METHODS[options["method"]],
        options["aux_budget"],
        options["aux"],
        options.get("speeds") or [1.0] * K,
        None,
        options.get("link"),
        options["state_factor"],
    )
    for value, feasible in ((T * (1 + 1e-6), True), (best * (1 - 1e-6), best == 0)):
        bounds = unbounded(problem, value)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(partition_search, "WORTHWHILE", 0)
            outcome = partition_search.search(bounds, None)
        assert outcome.complete and (outcome.found is not None) == feasible
        if outcome.found:
            assert brute_price(profile, tuple(outcome.found.cuts), tuple(outcome.found.above), **options)[0] <= max(
                value * (1 + 1e-6), 1e-9
            )


def unbounded(problem: Problem, T: float) -> Relaxation:
    """What `relax` would return if it knew nothing but the last stage."""
    K = len(problem.speeds)
    allowed = problem.within(T)
    if allowed is None or len(allowed.work) <= K:  # too few messages are in time: nothing fits
        allowed, T = problem, -1.0
    size = len(allowed.work) - 1
    fence = np.full(size, size)
    every = np.full(size, T)
    windows = [Window(0, every, every, np.full(size, np.inf)) for _ in range(K - 1)]
    return Relaxation(allowed, T, fence, [*windows, partition_bound._last(allowed, fence, T, slice(0, size))])


@settings(max_examples=200, deadline=None)
@given(cases())
def test_the_reported_numbers_are_those_of_the_equations(case: tuple[Profile, int, dict[str, Any]]) -> None:
    profile, K, options = case
    if (found := solve(*case)) is not None:
        above = tuple(rank == k + 1 for k, rank in enumerate(found.aux_ranks))
        step, memory = brute_price(profile, found.cuts, above, **options)
        assert found.step == pytest.approx(step)
        assert found.memory == pytest.approx(tuple(memory))
        terms = {name: options[name] for name in options if name not in ("memory_limit", "pins")}
        again = evaluate(profile, found.cuts, found.aux_ranks, **terms)
        assert (again.step, again.finish, again.work) == (found.step, found.finish, found.work)
        assert len(found.cuts) == len(found.aux_ranks) == K - 1


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_smallest_limit_that_an_error_names_works_and_one_byte_less_does_not(
    case: tuple[Profile, int, dict[str, Any]],
) -> None:
    profile, K, options = case
    options = {**options, "memory_limit": 1.0}
    try:
        partition(profile, K, **options)
    except PlanError as error:
        if "smallest that would work is " in str(error):
            enough = int(str(error).split("smallest that would work is ")[1].split(".")[0].replace(",", ""))
            assert partition(profile, K, **{**options, "memory_limit": enough}).step < math.inf
            if enough > 1:
                assert solve(profile, K, {**options, "memory_limit": enough - 1}) is None


@settings(max_examples=40, deadline=None)
@given(cases(), st.sampled_from([0.0, 0.05, 0.5]))
def test_auto_is_the_smallest_stage_count_within_tolerance(
    case: tuple[Profile, int, dict[str, Any]], tolerance: float
) -> None:
    profile, _, options = case
    options = {name: options[name] for name in options if name not in ("speeds", "memory_limit", "pins")}
    options["aux_budget"] = 0.1
    every = [partition(profile, K, **options) for K in range(1, min(4, len(profile.units)) + 1)]
    good = [split.K for split in every if split.step <= min(s.step for s in every) * (1 + tolerance)]
    chosen = auto_stages(profile, limit=4, tolerance=tolerance, **options)
    assert min(good) == chosen.K


@pytest.mark.parametrize("seed", range(0, 60, 10))
def test_dropping_beaten_labels_changes_no_optimum(seed: int) -> None:
    """Too large for brute force: the exact search with and without `_unbeaten`, on speeds and messages that tempt."""
    for each in range(seed, seed + 10):
        random = np.random.default_rng(each)
        size, K = int(random.integers(15, 60)), int(random.integers(3, 9))
        work = random.random(size) + 0.05
        forward = work * random.random(size)
        units = tuple(
            UnitCost(f"u{at}", float(f), float(w - f), output_bytes=int(random.integers(0, 4000)))
            for at, (f, w) in enumerate(zip(forward, work, strict=True))
        )
        profile = Profile(units, cost="flops", device="cpu")
        link = Link(4000 / (work.sum() / K * random.choice([0.1, 0.4])))
        speeds = [float(speed) for speed in random.choice([1.0, 1.0, 2.0], K)]
        steps = []
        for worthwhile in (0, 10**12):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(partition_search, "BEAMS", (1,))
                patch.setattr(partition_search, "WORTHWHILE", worthwhile)
                split = partition(profile, K, method="penalty", aux_budget=0.3, link=link, speeds=speeds)
            assert split.gap < 2e-9
            steps.append(split.step)
        assert steps[0] == pytest.approx(steps[1], rel=2e-9)
