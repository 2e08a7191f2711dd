"""Partition: the best contiguous split of a profile into K stages, for the step time of the method that will run.

`evaluate` is the one place where the equations stand. `partition` finds the split that minimises them (the search is in
`partition_search`) and says how close to the optimum it is proven to be. `auto_stages` chooses K.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from lpcompile.core.cost import Profile
from lpcompile.core.method import Method
from lpcompile.errors import PlanError, UsageError
from lpcompile.passes.partition.bound import Found, Problem, Relaxation, relax
from lpcompile.passes.partition.options import Pins, aux_shares, check, memory_limits, resolve
from lpcompile.passes.partition.search import BEAMS, EFFORT, decide, minimise, search


@dataclass(frozen=True)
class Link:
    """What carries a boundary's tensors from one rank to the next."""

    bytes_per_ms: float
    latency_ms: float = 0.0

    def time(self, size: float) -> float:
        return self.latency_ms + size / self.bytes_per_ms


@dataclass(frozen=True)
class Partition:
    """K contiguous stages and where their AuxNets run. Times in ms for one step, sizes in bytes; see `evaluate`."""

    K: int
    method: str
    cuts: tuple[int, ...]  # units before each boundary
    aux_ranks: tuple[int, ...]  # the rank of AuxNet_{k-1} for boundary k: k-1 (below) or k (above); -1 for none
    step: float
    lower_bound: float  # no split has a smaller step
    ideal: float  # all work but AuxNets, spread evenly over the speeds
    arrivals: tuple[float, ...]
    finish: tuple[float, ...]
    work: tuple[float, ...]  # busy ms a rank
    memory: tuple[float, ...]
    costs: tuple[float, ...]  # forward + backward of each stage at speed 1
    crossing: int  # bytes over all boundaries

    @property
    def gap(self) -> float:
        """How far the step may be from the optimum, as a part of it: about 1e-9 where optimality is proven."""
        return (self.step - self.lower_bound) / self.lower_bound if self.step > self.lower_bound else 0.0

    @property
    def imbalance(self) -> float:
        mean = sum(self.costs) / self.K
        return max(self.costs) / mean if mean else 1.0

    @property
    def rho(self) -> float:
        """The speedup over one rank of speed 1."""
        total = sum(self.costs)
        return total / self.step if self.step else 1.0


def evaluate(
    profile: Profile,
    cuts: Sequence[int],
    aux_ranks: Sequence[int] | None = None,
    *,
    method: Method,
    aux_budget: float | Sequence[float] = 0.1,
    aux: str = "derived",
    speeds: Sequence[float] | None = None,
    link: Link | None = None,
    state_factor: float = 3.0,
) -> Partition:
    """What this split costs. With r = aux_budget (one share, or one for each AuxNet), AuxNet_k takes r of its stage's
    time, at the speed of its host:

    arrival_k = arrival_{k-1} + r F_{k-1} + t_k (AuxNet_{k-1} below) or + t_{k-1} + r F_{k-1} (above); 0 unless chained.
    finish_k = arrival_k + F_k + B_k + hosted AuxNet work that arrival_k does not hold yet + loss on the last rank.
    step = the largest finish_k or message time t_k.

    `aux="recursive"` makes each lambda from the model's input, so nothing is chained; `aux="tied"` keeps every AuxNet
    below, where its weights are, as heads (`dgl`) always are. Without `aux_ranks` every AuxNet runs below.
    `lower_bound` is the trivial one.
    """
    units, K = profile.units, len(cuts) + 1
    rates = check(profile, K, aux_budget, speeds, state_factor)
    bounds = (0, *cuts, len(units))
    if any(low >= high for low, high in pairwise(bounds)):
        raise PlanError(
            f"cuts {list(cuts)} leave a stage without units: they must rise strictly between 0 and "
            f"{len(units)}, the number of units."
        )
    has_aux, heads, chain = method.has_aux, method.heads, method.chained and aux != "recursive"
    hosts = tuple(aux_ranks) if aux_ranks is not None else tuple(k if has_aux else -1 for k in range(K - 1))
    able = [(k,) if heads else (k, k + 1) if has_aux else (-1,) for k in range(K - 1)]
    if len(hosts) != K - 1 or any(rank not in ranks for rank, ranks in zip(hosts, able, strict=True)):
        what = "k-1 (below), where the stage of its head is" if heads else "k-1 (below) or k (above)"
        raise PlanError(
            f"aux_ranks {list(hosts)} do not fit K={K} and method={method.name!r}: give for each boundary k "
            f"{what if has_aux else '-1, for the method has no AuxNets'}."
        )
    r = aux_shares(aux_budget, K) if has_aux else [0.0] * (K - 1)
    stages = [units[low:high] for low, high in pairwise(bounds)]
    forward = [math.fsum(u.forward for u in stage) for stage in stages]
    backward = [math.fsum(u.backward for u in stage) for stage in stages]
    state = [sum(state_factor * u.parameter_bytes + u.saved_bytes for u in stage) for stage in stages]
    crossing = [0, *(stage[-1].output_bytes for stage in stages[:-1]), 0]  # by boundary; model input and output: none
    times = [link.time(size) if link and 0 < k < K else 0.0 for k, size in enumerate(crossing)]

    arrivals, finish, work, memory = [0.0], [], [], []
    for k in range(1, K):
        above = hosts[k - 1] == k
        wait = r[k - 1] * forward[k - 1] / rates[hosts[k - 1]] + times[k - 1 if above else k] if chain else 0.0
        arrivals.append(arrivals[-1] + wait)
    for k in range(K):
        hosted = [j for j in (k - 1, k) if 0 <= j < K - 1 and hosts[j] == k]
        own = forward[k] + backward[k] + (profile.loss if k == K - 1 else 0.0)
        busy = own + sum(r[j] * (forward[j] + backward[j]) for j in hosted)
        waited = r[k - 1] * forward[k - 1] if chain and k - 1 in hosted else 0.0  # that AuxNet forward made the arrival
        finish.append(arrivals[k] + (busy - waited) / rates[k])
        work.append(busy / rates[k])
        memory.append(state[k] + crossing[k] + crossing[k + 1] + sum(r[j] * state[j] for j in hosted))
    step = max(*finish, *times)
    costs = tuple(f + b for f, b in zip(forward, backward, strict=True))
    ideal = (math.fsum(costs) + profile.loss) / math.fsum(rates)
    trivial = max(ideal, max(u.forward + u.backward for u in units) / max(rates))
    return Partition(
        K,
        method.name,
        tuple(cuts),
        hosts,
        step,
        min(trivial, step),
        ideal,
        tuple(arrivals),
        tuple(finish),
        tuple(work),
        tuple(memory),
        costs,
        sum(crossing),
    )


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
    state_factor: float = 3.0,
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
    """The smallest K whose step is within `tolerance` of the best step over K = 1..limit: what K="auto" means.

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
        except PlanError as error:  # too few stages for the memory or the pins: another K may do
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
