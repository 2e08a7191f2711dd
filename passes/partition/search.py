"""Decide whether a step time T can be met, and find the smallest T that can: the search behind `partition`.

Fix T. A label at boundary k says: the units before `cut` are placed, lambda_k arrives at `time`, and rank k hosts the
AuxNet of the units from `start` to `cut` (none if start == cut). An earlier time and a later start never hurt: hosted
work and hosted bytes both fall as `start` rises, so two criteria order the labels of a cut, memory limit or not.

- `relax` walks the stages backwards and bounds what any label may cost and still finish. O(K n log n). It never refuses
  a T that is feasible, and it is nearly always exact where no arrival depends on the path: it gives the lower bound.
- `search` walks forwards over the labels that `relax` leaves alive. It says whether it looked at all of them.
- `minimise` bisects T on the first, then closes what gap is left with the second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lpcompile.passes.partition.bound import ROUNDING, Floats, Found, Ints, Problem, Relaxation, placements

TOLERANCE = 1e-9  # relative gap at which two step times count as equal
BEAMS = (32, 256)  # labels kept a boundary in the cheap attempts that come before the exact one
PAIRS = 30_000  # (label, next cut) pairs per stage in a cheap attempt
EFFORT = 2_000_000  # pairs in all exact attempts together; what is then not proven shows as a gap
CHAMPIONS = 32  # labels that `_unbeaten` compares all others with
ROUGH = 1e-3  # relative gap from which on the exact search takes over from the beams
WORTHWHILE = 5_000  # pairs from which on that costs less than it saves


class Labels(NamedTuple):
    """The labels of one boundary, as columns."""

    cut: Ints
    start: Ints
    time: Floats
    crossed: Floats  # bytes over all boundaries so far
    above: Ints  # how many AuxNets so far run on the rank above
    parent: Ints

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Labels:
        return Labels(
            self.cut[rows], self.start[rows], self.time[rows], self.crossed[rows], self.above[rows], self.parent[rows]
        )


class Outcome(NamedTuple):
    found: Found | None
    complete: bool  # with found None: a proof that there is none
    pairs: int  # (label, next cut) pairs looked at


def search(relaxation: Relaxation, beam: int | None, by_bytes: bool = False, allowance: float = np.inf) -> Outcome:
    """Look for a split that meets T, with at most `beam` labels per boundary: those with most slack, or, `by_bytes`,
    those that sent least. Without a beam, give up only after `allowance` pairs."""
    zero = np.zeros(1, dtype=np.int64)
    history = [Labels(zero, zero, np.zeros(1), np.zeros(1), zero, zero)]
    complete, spent = True, 0
    for k in range(len(relaxation.problem.speeds) - 1):
        labels, whole, pairs = _advance(relaxation, k, history[-1], beam, allowance - spent, by_bytes)
        complete, spent = complete and whole, spent + pairs
        if not len(labels.cut) or not (complete or beam):
            return Outcome(None, complete, spent)
        history.append(labels)
    row = int(np.lexsort((history[-1].above, history[-1].crossed))[0])
    cuts: list[int] = []
    above: list[bool] = []
    for labels in reversed(history[1:]):
        cuts.append(int(relaxation.problem.position[labels.cut[row]]))
        above.append(bool(labels.start[row] < labels.cut[row]))
        row = int(labels.parent[row])
    return Outcome(Found(cuts[::-1], above[::-1]), complete, spent)


def _hosted(problem: Problem, k: int, labels: Labels) -> tuple[Floats, Floats]:
    """What AuxNet_{k-1} adds to rank k besides the arrival: ms and bytes."""
    late, r = problem.work - problem.arrival, problem.shares[k - 1] if k else 0.0
    return (
        r * (late[labels.cut] - late[labels.start]) / problem.speeds[k],
        r * (problem.state[labels.cut] - problem.state[labels.start]),
    )


def _slack(relaxation: Relaxation, k: int, labels: Labels) -> Floats:
    """How far a label stays inside the bounds of its window, in ms; -inf where it does not."""
    window = relaxation.windows[k]
    at, (extra, kept) = labels.cut - window.first, _hosted(relaxation.problem, k, labels)
    slack = np.minimum(window.latest[at] - labels.time, window.room[at] - labels.time - extra)
    return np.where((slack < 0) | (kept > window.spare[at]), -np.inf, slack)


def _advance(
    relaxation: Relaxation,
    k: int,
    labels: Labels,
    beam: int | None,
    allowance: float,
    by_bytes: bool,
) -> tuple[Labels, bool, int]:
    """The labels of boundary k+1 from those of boundary k; whether all were followed; how many pairs that was.

    Where pairs are too many, only some of the next cuts are tried: those that send least, or any."""
    problem, after = relaxation.problem, relaxation.windows[k + 1]
    following = after.first + np.flatnonzero(after.latest > -np.inf)
    ranges = _ranges(relaxation, k, labels, following)
    rows, pairs = np.arange(len(labels.cut)), sum(int((high - low).sum()) for low, high in ranges)
    if pairs > WORTHWHILE and not by_bytes:
        rows = _unbeaten(relaxation, k, labels, following, ranges)
    whole = beam is None or len(rows) <= beam
    if not whole:
        worth = labels.crossed if by_bytes else -_slack(relaxation, k, labels)
        rows = np.sort(rows[np.lexsort((labels.above[rows], worth[rows]))[:beam]])
    pairs, limit = sum(int((high - low)[rows].sum()) for low, high in ranges), PAIRS if beam else allowance
    if pairs > limit:
        whole, order = False, np.random.default_rng(0).permutation(len(following))
        if by_bytes:
            order = order[np.argsort(problem.crossing[following[order]], kind="stable")]
        following = following[np.sort(order[: PAIRS // (2 * len(rows)) + 1])]
        ranges = _ranges(relaxation, k, labels, following)
    parts: list[Labels] = []
    for above, (low, high) in enumerate(ranges):
        count = (high - low)[rows]
        first = np.repeat(low[rows] - np.cumsum(count) + count, count)
        cut = following[np.arange(len(first)) + first]
        parts.append(_extend(relaxation, k, labels, np.repeat(rows, count), cut, bool(above)))
    new = Labels(*map(np.concatenate, zip(*parts, strict=True)))
    return _undominated(relaxation, new, by_bytes), whole, pairs


def _unbeaten(relaxation: Relaxation, k: int, labels: Labels, following: Ints, ranges: list[tuple[Ints, Ints]]) -> Ints:
    """The labels without those that a label further on beats, whatever they do next.

    A label l at a later cut that still lies before every next cut of label m can take over m's future: its stage is
    m's without the first units. It is as good if it is as early, with and without its message, and rank k is done as
    soon (and, under a memory limit, holds as little)."""
    problem, cut, end = relaxation.problem, labels.cut, len(relaxation.problem.work)
    extra, kept = _hosted(problem, k, labels)
    chain = problem.shares[k] * problem.arrival[cut]
    criteria = np.stack(
        [
            labels.time - chain / problem.speeds[k],
            labels.time + problem.delay[cut] - chain / problem.speeds[k + 1],
            labels.time + extra - problem.work[cut] / problem.speeds[k],
            kept + problem.crossing[cut] - problem.state[cut]
            if np.isfinite(problem.limits).any()
            else np.zeros(len(cut)),
        ]
    )
    nearest = np.minimum.reduce([np.where(high > low, np.append(following, end)[low], end) for low, high in ranges])
    rows = np.lexsort((-cut, criteria[0] + criteria[1]))
    rows = rows[nearest[rows] < end]
    for place in range(CHAMPIONS):
        if place >= len(rows):
            break
        champion, rest = rows[place], rows[place + 1 :]
        lives = (cut[rest] > cut[champion]) | (cut[champion] >= nearest[rest])
        lives |= (criteria[:, rest] < criteria[:, champion, None]).any(axis=0)
        rows = np.concatenate([rows[: place + 1], rest[lives]])
    return np.sort(rows)


def _ranges(relaxation: Relaxation, k: int, labels: Labels, following: Ints) -> list[tuple[Ints, Ints]]:
    """For AuxNet_k below, then above: each label's range in `following` of the cuts that may come next."""
    problem, after = relaxation.problem, relaxation.windows[k + 1]
    at, work = following - after.first, problem.work[following]
    left = (relaxation.T - labels.time - _hosted(problem, k, labels)[0]) * problem.speeds[k]
    ranges = []
    for share, needs in placements(problem, k, labels.cut, following, after, at):
        high = np.minimum(
            np.searchsorted(work, problem.work[labels.cut] + left / share, side="right"),
            np.searchsorted(following, relaxation.fence[labels.cut], side="right"),
        )
        low = np.searchsorted(following, labels.cut, side="right")
        for value, offset in needs:
            low = np.maximum(low, np.searchsorted(np.maximum.accumulate(value), labels.time - offset))
        ranges.append((low, np.maximum(low, high)))
    return ranges


def _extend(relaxation: Relaxation, k: int, labels: Labels, parent: Ints, cut: Ints, above: bool) -> Labels:
    """Stage k = units between the parent's cut and `cut`, its AuxNet on rank k or on the rank above."""
    problem, old = relaxation.problem, labels.cut[parent]
    chain = problem.shares[k] * (problem.arrival[cut] - problem.arrival[old]) / problem.speeds[k + above]
    time = labels.time[parent] + chain + (problem.delay[old] if above else problem.delay[cut])
    new = Labels(
        cut,
        old if above else cut,
        time,
        labels.crossed[parent] + problem.crossing[cut],
        labels.above[parent] + above,
        parent,
    )
    keep = _slack(relaxation, k + 1, new) > -np.inf
    if np.isfinite(problem.limits[k]):
        share = 1 + problem.shares[k] if problem.has_aux and not above else 1.0
        bytes_kept = share * (problem.state[cut] - problem.state[old]) + problem.crossing[cut] + problem.crossing[old]
        keep &= bytes_kept + _hosted(problem, k, labels)[1][parent] <= problem.limits[k]
    return new.take(keep)


def _undominated(relaxation: Relaxation, labels: Labels, by_bytes: bool) -> Labels:
    """For each cut the labels with no other that is as early and hosts as little (and the one that sent least)."""
    if not len(labels.cut):
        return labels
    labels = labels.take(np.lexsort((labels.crossed, labels.time, -labels.start, labels.cut)))
    group = np.cumsum(np.append(True, labels.cut[1:] != labels.cut[:-1])) - 1
    by_time = np.argsort(labels.time, kind="stable")
    rank = np.empty_like(by_time)
    rank[by_time] = np.arange(len(by_time))
    shift = group * len(rank)  # the running minimum starts anew in each group
    best = labels.time[by_time[np.minimum.accumulate(rank - shift) + shift]]
    first = np.append(True, group[1:] != group[:-1])
    keep = first | np.append(True, labels.time[1:] < best[:-1] - relaxation.T * ROUNDING / len(relaxation.windows) / 4)
    if by_bytes:
        least = np.lexsort((labels.above, labels.crossed, group))
        keep[least[first]] = True
    return labels.take(keep)


Attempt = Callable[[float], Relaxation | None]


def minimise(attempt: Attempt, price: Callable[[Found], float], low: float, high: float) -> tuple[Found, float] | None:
    """The split of least price, and the largest value proven too small; None if even `high` is.

    `attempt(value)` is the relaxation for that value; no split is cheaper than `low`.
    """
    relaxation = attempt(low)
    if relaxation and (found := decide(relaxation, 0).found):
        return found, low
    lower, upper, width = low, low, 1e-3 * max(low, 1e-9 * high)
    while not (relaxation := attempt(upper := min(lower + width, high))):
        if upper >= high:
            return None
        lower, width = upper, 4 * width
    descend = True
    while (upper := min(upper, relaxation.implied)) - lower > 0.5 * TOLERANCE * upper:
        probe = upper * (1 - 0.4 * TOLERANCE) if descend else 0.5 * (lower + upper)
        descend = not descend and relaxation.problem.chain
        if tried := attempt(probe):
            relaxation, upper = tried, probe
        else:
            lower = probe
    best, lower, failed = _climb(attempt, lower, upper, high)
    return _close(attempt, price, best, lower, failed) if best else None


def _climb(attempt: Attempt, lower: float, probe: float, high: float) -> tuple[Found | None, float, float]:
    """Raise the value until a beam finds a split; with it, the value proven too small and the last one that failed."""
    failed, width = lower, 1e-5 * probe
    while not (outcome := decide(attempt(probe), EFFORT if probe >= high else 0)).found and probe < high:
        lower, failed = probe if outcome.complete else lower, probe
        probe, width = min(probe + width, high), 4 * width
    return outcome.found, lower, failed


def _close(
    attempt: Attempt,
    price: Callable[[Found], float],
    best: Found,
    lower: float,
    failed: float,
) -> tuple[Found, float]:
    """Bring price and proof together: first by the beams, roughly, then exactly, until they meet or effort runs out."""
    value, effort, descend, unknown = price(best), EFFORT, True, np.inf
    while min(value, unknown) - lower > TOLERANCE * value and effort > 0:
        rough = value - max(lower, failed) > ROUGH * value
        if rough:
            probe = 0.5 * (max(lower, failed) + value)
        elif descend and unknown == np.inf:
            probe = value * (1 - 0.5 * TOLERANCE)
        else:
            probe = 0.5 * (lower + min(value, unknown))
        descend = rough or not descend
        outcome = decide(attempt(probe), 0 if rough else min(effort, EFFORT // 2))
        effort -= outcome.pairs
        if outcome.found:
            best, value = outcome.found, min(value, price(outcome.found))
        elif outcome.complete:
            lower = probe
        elif rough:
            failed = probe
        else:
            unknown = probe
    return best, lower


def decide(relaxation: Relaxation | None, effort: int) -> Outcome:
    """Search with the beams, then, where effort is left and the beams were not complete, without. Only the last counts
    its pairs."""
    if relaxation is None:
        return Outcome(None, True, 0)
    for beam in BEAMS:
        outcome = search(relaxation, beam)
        if outcome.found or outcome.complete:
            return outcome._replace(pairs=0)
    return search(relaxation, None, allowance=effort) if effort > 0 else Outcome(None, False, 0)
