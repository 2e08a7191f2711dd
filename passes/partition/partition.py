"""The best contiguous split of a profile into K stages, for the step time of a method.

`partition` minimises the step time of `evaluate` (the search is in `search`, its bound in `bound`) and proves how close
to the optimum it is. `auto_stages` chooses K.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lpcompile.core.cost import STATE_COPIES, Profile
from lpcompile.core.method import Method
from lpcompile.errors import PlanError, UsageError
from lpcompile.passes.partition.bound import Found, Problem, Relaxation, relax
from lpcompile.passes.partition.evaluate import Link, Partition, evaluate
from lpcompile.passes.partition.options import Pins, aux_shares, check, memory_limits, resolve
from lpcompile.passes.partition.search import BEAMS, EFFORT, decide, minimise, search


def partition(
    profile: Profile,
    K: int,
    *,
    method: Method,
    aux_budget: float | Sequence[float] = 0.1,
    aux: str = "derived",
    memory_limit: float | Sequence[float] | None = None,
    speeds: Sequence[float] | None = None,
    pins: Pins | Mapping[str, Any] | None = None,
    link: Link | None = None,
    state_factor: float = STATE_COPIES,
) -> Partition:
    """The split with the smallest step: provably, up to `gap`. Of equal ones, one that sends little.

    >>> plan = partition(profile, K=4, method=PENALTY, link=Link(bytes_per_ms=12e6))
    >>> plan.cuts, plan.step, plan.gap
    """
    rates = check(profile, K, aux_budget, speeds, state_factor)
    K, limits = operator.index(K), memory_limits(memory_limit, K)
    problem = _problem(profile, K, method, aux_budget, aux, rates, pins, link, state_factor)

    def price(found: Found) -> Partition:
        hosts = [k + up if problem.has_aux else -1 for k, up in enumerate(found.above)]
        return evaluate(
            profile,
            found.cuts,
            hosts,
            method=method,
            aux_budget=aux_budget,
            aux=aux,
            speeds=rates,
            link=link,
            state_factor=state_factor,
        )

    def fits(split: Partition) -> bool:
        return all(size <= limit * (1 + 1e-12) for size, limit in zip(split.memory, limits, strict=True))

    total, slowest = problem.work[-1], problem.speeds.min()
    messages = np.sort(problem.link[1:-1])[: K - 1]
    low = max(
        total / problem.speeds.sum(),
        np.diff(problem.work).max() / problem.speeds.max(),
        problem.loss,
        *messages[-1:],
        *problem.link[problem.forced],
    )
    high = total * (1 + 3 * problem.most_aux) / slowest + problem.loss + K * problem.link.max()
    solved = minimise(lambda T: relax(problem, T), lambda found: price(found).step, float(low), float(high))
    if solved and not fits(price(solved[0])):
        problem = replace(problem, limits=np.array(limits) * (1 + 1e-12))
        fallback, lower = _fitting(problem, price, limits), solved[1]
        solved = minimise(lambda T: relax(problem, T), lambda found: price(found).step, lower, float(high))
        solved = solved or (fallback, lower)
    if solved is None:
        raise PlanError(
            f"no split of {len(profile.units)} units into {K} stages that satisfies the pins {pins} was "
            f"found. Loosen them or change K."
        )
    best = price(solved[0])
    relaxation = relax(problem, best.step)
    tidy = search(relaxation, BEAMS[0], by_bytes=True).found if relaxation else None
    if tidy and fits(other := price(tidy)) and other.step <= best.step:
        best = min(best, other, key=lambda split: (split.crossing, sum(split.aux_ranks)))
    lower = max(solved[1], best.lower_bound)
    return replace(best, lower_bound=best.step if lower >= best.step * (1 - 1e-12) else lower)


def auto_stages(profile: Profile, *, limit: int = 16, tolerance: float = 0.05, **options: Any) -> Partition:
    """The smallest K whose step is within `tolerance` of the best step over K = 1..limit: the choice of K="auto".

    `speeds` and `memory_limit`, where given a rank, must cover the ranks to choose from; the first K are used."""
    top = min(
        [
            limit,
            len(profile.units),
            *(len(options[name]) for name in ("speeds", "memory_limit") if isinstance(options.get(name), Sequence)),
        ]
    )
    found: list[Partition] = []
    refused: PlanError | None = None
    for K in range(1, top + 1):
        cut = {
            name: options[name][:K] for name in ("speeds", "memory_limit") if isinstance(options.get(name), Sequence)
        }
        try:
            found.append(partition(profile, K, **{**options, **cut}))
        except PlanError as error:  # too few stages for the memory or the pins; another K may work
            refused = error
    if not found:
        raise refused or UsageError(f"limit={limit} leaves no K to choose from: it must be at least 1.")
    best = min(split.step for split in found)
    return next(split for split in found if split.step <= best * (1 + tolerance))


def _problem(
    profile: Profile,
    K: int,
    method: Method,
    aux_budget: float | Sequence[float],
    aux: str,
    rates: Sequence[float],
    pins: Pins | Mapping[str, Any] | None,
    link: Link | None,
    state_factor: float,
) -> Problem:
    """Prefix sums at the cuts that the pins allow."""
    units = profile.units
    forced, forbidden = resolve(pins, [u.name for u in units])
    if both := sorted(forced & forbidden):
        raise PlanError(
            f"pins conflict: a cut after unit {units[both[0] - 1].name!r} is asked for and lies inside a "
            f"`together` span. Drop one of the two."
        )
    allowed = len(units) - 1 - len(forbidden)
    if not len(forced) <= K - 1 <= allowed:
        raise PlanError(
            f"pins conflict with K={K}: they force {len(forced)} cuts and leave {allowed} possible, and "
            f"K={K} needs {K - 1}. Ask for {len(forced) + 1} <= K <= {allowed + 1} or change the pins."
        )
    keep = np.array([at for at in range(len(units) + 1) if at not in forbidden])

    def prefix(costs: list[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
        sums: np.ndarray[Any, np.dtype[np.float64]] = np.concatenate([[0.0], np.cumsum(costs)])[keep]
        return sums

    crossing = np.array([0.0, *(float(u.output_bytes) for u in units[:-1]), 0.0])
    times = np.array([link.time(size) if link and 0 < at < len(units) else 0.0 for at, size in enumerate(crossing)])
    work = prefix([u.forward + u.backward for u in units])
    chain = method.chained and aux != "recursive"
    arrival = prefix([u.forward for u in units]) if chain else np.zeros_like(work)
    state = prefix([state_factor * u.parameter_bytes + u.saved_bytes for u in units])
    return Problem(
        keep,
        work,
        arrival,
        state,
        crossing[keep],
        times[keep],
        np.isin(keep, sorted(forced)),
        np.array(rates, dtype=np.float64),
        np.full(K, np.inf),
        profile.loss / rates[-1],
        np.array(aux_shares(aux_budget, K)) if method.has_aux else np.zeros(max(0, K - 1)),
        method.has_aux,
        chain,
        aux == "tied" or method.heads,
    )


def _fitting(problem: Problem, price: Callable[[Found], Partition], limits: list[float]) -> Found:
    """A split that meets the limits, or an error that says which could be met: time aside, memory is one more load to
    balance, so the same search answers."""
    zero, K = np.zeros_like(problem.work), len(limits)
    weightless = replace(problem, work=zero, arrival=zero, link=zero, speeds=np.ones(K), loss=0.0, chain=False)
    given, total = np.array(limits), problem.state[-1]

    def need(found: Found) -> float:
        return max(size / limit for size, limit in zip(price(found).memory, limits, strict=True))

    def attempt(scale: float) -> Relaxation | None:
        scaled = np.where(np.isfinite(given), scale * given, np.inf) * (1 + 1e-12)
        return relax(replace(weightless, limits=scaled), 0.0)

    if found := decide(attempt(1.0), EFFORT).found:
        return found
    high = ((1 + 2 * problem.most_aux) * total + 2 * problem.crossing.max()) / given.min()
    solved = minimise(attempt, need, float(total / given.sum()), float(high))
    if solved and (scale := need(solved[0])) <= 1 + 1e-12:
        return solved[0]
    finite = sorted({limit for limit in limits if limit < math.inf})
    asked, enough = (
        " and ".join(f"{math.ceil(part * limit * (1 - 1e-12)):,}" for limit in finite)
        for part in (1.0, scale if solved else high)
    )
    proven = "cannot be met" if solved and solved[1] >= 1 - 1e-6 else "could not be met by any split that was tried"
    raise PlanError(
        f"memory_limit of {asked} bytes a rank {proven} with K={K}: the smallest that would work is "
        f"{enough}. Raise it to that, or ask for more stages."
    )
