"""A bound on every label, for a fixed step time T: the first half of the search behind `partition`.

`relax` walks the stages backwards and bounds what any label (see `search`) may cost and still finish.
O(K n log n). It never refuses a T that is feasible, and it is nearly always exact where no arrival depends on the path:
it gives the lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ROUNDING = 1e-10  # T is widened by this part before a test, so that rounding cannot make a feasible T look infeasible


@dataclass(frozen=True)
class Problem:
    """A profile as prefix sums over the legal cuts: index 0 is before the first unit, the last after the last unit."""

    position: Ints  # units before the cut
    work: Floats  # ms of forward + backward
    arrival: Floats  # ms that the AuxNet chain follows: forward, or zero where no arrival is waited for
    state: Floats  # bytes that a stage keeps
    crossing: Floats  # bytes that cross this cut (not a sum)
    link: Floats  # ms to send them (not a sum)
    forced: NDArray[np.bool_]  # the cut must be made
    speeds: Floats
    limits: Floats  # bytes per rank
    loss: float  # ms on the last rank
    shares: Floats  # of its stage's cost, for the AuxNet of each stage but the last
    has_aux: bool
    chain: bool
    below_only: bool = False  # an AuxNet on its stage's own weights cannot run on the rank above

    @property
    def most_aux(self) -> float:
        return float(self.shares.max()) if len(self.shares) else 0.0

    @property
    def delay(self) -> Floats:
        """What the link adds to an arrival; skewed methods hide it."""
        return self.link if self.chain else np.zeros_like(self.link)

    def within(self, T: float) -> Problem | None:
        """The same problem without the cuts whose message takes longer than T; None if a forced one goes."""
        keep = self.link <= T
        if keep.all():
            return self
        if self.forced[~keep].any():
            return None
        arrays = {
            name: getattr(self, name)[keep]
            for name in ("position", "work", "arrival", "state", "crossing", "link", "forced")
        }
        return replace(self, **arrays)


class Window(NamedTuple):
    """For the cuts from `first` on that stage k may start at: what its label may cost at most (-inf: dead)."""

    first: int
    latest: Floats  # arrival
    room: Floats  # arrival + hosted AuxNet work
    spare: Floats  # hosted AuxNet bytes


class Relaxation(NamedTuple):
    """What `relax` proves about one T; `search` reads it."""

    problem: Problem
    T: float
    fence: Ints  # the next forced cut after each cut: no stage goes past it
    windows: list[Window]

    @property
    def implied(self) -> float:
        """A value that is feasible as far as these bounds can tell: a chain that could start later can end earlier."""
        return self.T - float(self.windows[0].latest[0]) if self.problem.chain else np.inf


class Found(NamedTuple):
    """One feasible split: units before each boundary, and whether its AuxNet runs on the rank above."""

    cuts: list[int]
    above: list[bool]


def relax(problem: Problem, T: float) -> Relaxation | None:
    """Bounds on every label for step time T, or None: then no split meets T."""
    T = T * (1 + ROUNDING)
    within = problem.within(T)
    K, n = len(problem.speeds), 0 if within is None else len(within.work) - 1
    if within is None or n < K:
        return None
    problem, work, speeds = within, within.work, within.speeds
    forced = np.append(np.flatnonzero(problem.forced), n)
    fence = forced[np.searchsorted(forced, np.arange(n), side="right")]
    tops = [0]  # how far the stages before k get if nothing but their own work counts
    for k in range(K - 1):
        until = work[tops[k]] + max(0.0, T - float(_earliest(problem, k, tops[k]))) * speeds[k]
        tops.append(min(int(np.searchsorted(work, until, side="right")) - 1, int(fence[tops[k]]), n - (K - 1 - k)))
    windows: list[Window] = []
    goal = n
    for k in reversed(range(K)):
        first = max(int(np.searchsorted(work, work[goal] - T * speeds[k])), k)
        if first > tops[k]:
            return None
        span = slice(first, tops[k] + 1)
        window = _before(problem, fence, T, k, span, windows[-1]) if windows else _last(problem, fence, T, span)
        alive = np.flatnonzero(window.latest > -np.inf)
        if not len(alive):
            return None
        goal, kept = first + int(alive[0]), slice(int(alive[0]), int(alive[-1]) + 1)
        windows.append(Window(goal, *(bound[kept] for bound in window[1:])))
    return Relaxation(problem, T, fence, windows[::-1])


def _earliest(problem: Problem, k: int, at: slice | int) -> Floats:
    """A bound from below on the arrival at stage k: all AuxNets on the fastest rank, all messages the smallest."""
    messages = (k - 1) * float(problem.delay[1:-1].min()) if k > 1 else 0.0
    least = float(problem.shares[:k].min()) if k else 0.0
    arrival: Floats = least * problem.arrival[at] / problem.speeds.max() + messages
    return arrival


def _last(problem: Problem, fence: Ints, T: float, span: slice) -> Window:
    """The window of the last stage: exact, because nothing is left to choose."""
    k = len(problem.speeds) - 1
    room = T - problem.loss - (problem.work[-1] - problem.work[span]) / problem.speeds[k]
    spare = problem.limits[k] - (problem.state[-1] - problem.state[span]) - problem.crossing[span]
    dead = (room < _earliest(problem, k, span)) | (spare < 0) | (fence[span] < len(problem.work) - 1)
    room = np.where(dead, -np.inf, room)
    return Window(span.start, room, room, spare)


def _before(problem: Problem, fence: Ints, T: float, k: int, here: slice, after: Window) -> Window:
    """The window of stage k from that of stage k+1. What makes it a relaxation: each bound picks its own next cut, and
    a running maximum over the next cuts may look at one that does not lie after this cut."""
    there = slice(after.first, after.first + len(after.latest))
    r, speed, work, state = problem.shares[k], problem.speeds[k], problem.work, problem.state
    earliest = _earliest(problem, k, here)
    alive = np.where(after.latest > -np.inf, np.arange(len(after.latest)), len(after.latest))
    alive = np.append(np.minimum.accumulate(alive[::-1])[::-1], len(after.latest))
    following = alive[np.clip(np.arange(here.start, here.stop) + 1 - after.first, 0, len(after.latest))]
    bounded = bool(np.isfinite(problem.limits).any())

    def option(share: float, needs: list[tuple[Floats, Floats]], hosted: tuple[Floats, Floats] | None) -> list[Floats]:
        """(latest, room, spare) when the stage costs `share` of its work and each (value, offset) of `needs` asks
        value[next cut] + offset[this cut] >= arrival."""
        heights = [(np.maximum.accumulate(value), offset) for value, offset in needs]
        low, high = following, fence[here] - after.first
        for height, offset in heights:
            low = np.maximum(low, np.searchsorted(height, earliest - offset))
        spare = np.full(len(low), np.inf)
        if bounded:
            floor = np.minimum.accumulate((share * state[there] + problem.crossing[there])[::-1])[::-1]
            budget = problem.limits[k] - problem.crossing[here] + share * state[here]
            high = np.minimum(high, np.searchsorted(floor, budget, side="right") - 1)
            if hosted is not None:
                low = np.maximum(low, np.searchsorted(np.maximum.accumulate(hosted[0]), hosted[1]))
        high = np.minimum(high, len(after.latest) - 1)
        dead = low > high
        low = np.minimum(low, len(after.latest) - 1)
        if bounded:
            spare = budget - floor[low]
        cost, base = share * work[there] / speed, T + share * work[here] / speed
        room = base - cost[low]
        latest = np.full(len(low), np.inf)
        for height, offset in heights if problem.chain else ():
            # base - cost falls and height + offset rises with the next cut: the best minimum is where they cross
            cross = np.searchsorted(height + cost, base - offset)
            best = np.full(len(low), -np.inf)
            for cut in (cross - 1, cross):
                at = np.maximum(np.minimum(cut, high), low)
                best = np.maximum(best, np.minimum(base - cost[at], height[at] + offset))
            latest = np.minimum(latest, best)
        dead |= (room < earliest) | (latest < earliest) | (spare < 0)
        return [np.where(dead, -np.inf, bound) for bound in (np.minimum(latest, room), room, spare)]

    hosted = (after.spare - r * state[there], -r * state[here])
    options = [
        option(share, needs, hosted if above else None)
        for above, (share, needs) in enumerate(placements(problem, k, here, there, after, slice(None)))
    ]
    return Window(here.start, *(np.maximum.reduce(bounds) for bounds in zip(*options, strict=True)))


def placements(
    problem: Problem,
    k: int,
    here: slice | Ints,
    there: slice | Ints,
    after: Window,
    at: slice | Ints,
) -> list[tuple[float, list[tuple[Floats, Floats]]]]:
    """AuxNet_k below, then above: the share of the stage's work that rank k pays, and pairs (value, offset) that ask
    value[next cut] + offset[this cut] >= arrival, so that the next label stays within its bounds."""
    r, speed, work, arrival, delay = problem.shares[k], problem.speeds[k], problem.work, problem.arrival, problem.delay
    latest, host = after.latest[at], problem.speeds[k + 1]
    below = (latest - r * arrival[there] / speed - delay[there], r * arrival[here] / speed)
    if not problem.has_aux:
        return [(1.0, [below])]
    if problem.below_only:
        return [(1 + r, [below])]
    start = (latest - r * arrival[there] / host, r * arrival[here] / host - delay[here])
    hosting = (after.room[at] - r * work[there] / host, r * work[here] / host - delay[here])
    return [(1 + r, [below]), (1.0, [start, hosting])]
