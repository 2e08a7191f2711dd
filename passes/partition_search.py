"""Decide whether a step time T can be met, and find the smallest T that can: the search behind `partition`.

Fix T. A label at boundary k says: units up to `cut` are placed, lambda_k arrives at `time`, and rank k hosts the AuxNet of
the units from `start` to `cut` (none if start == cut). An earlier time and a later start never hurt: the hosted work and
the hosted memory both fall as `start` rises, so two criteria order the labels of a cut even under a memory limit.

- `relax` walks the stages backwards and bounds, for every cut, what any label may still cost. It costs O(K n log n),
  never refuses a T that is feasible, and is nearly always exact. So it gives the lower bound.
- `search` walks forwards over the labels that `relax` leaves alive. It is exact unless its beam cut labels off, and it
  says which.
- `minimise` bisects T on the first, then closes what gap is left with the second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TOLERANCE = 1e-9  # relative gap at which two step times count as equal
ROUNDING = 1e-10  # T is widened by this part before a test, so that rounding can not make a feasible T look infeasible
BEAMS = (48, 512)  # labels kept a stage in the cheap attempts that come before the exact one
PAIRS = 100_000  # (label, next cut) pairs a stage in a cheap attempt
WEIGHT=1.0
CHAMPIONS = 64
CHUNK = 2_000_000  # pairs expanded at once in the exact one


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
    limits: Floats  # bytes a rank
    loss: float  # ms on the last rank
    aux_budget: float
    has_aux: bool
    chain: bool

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
        arrays = {name: getattr(self, name)[keep] for name in
                  ("position", "work", "arrival", "state", "crossing", "link", "forced")}
        return replace(self, **arrays)


class Window(NamedTuple):
    """For the cuts from `first` on that stage k may start at: what its label may cost at most (-inf: dead)."""

    first: int
    latest: Floats  # arrival
    room: Floats  # arrival + hosted AuxNet work
    blend: Floats  # arrival + _weight * hosted AuxNet work
    spare: Floats  # hosted AuxNet bytes


class Relaxation(NamedTuple):
    """What `relax` proves about one T; `search` reads it."""

    problem: Problem
    T: float
    fence: Ints  # the next forced cut after each cut: no stage goes past it
    windows: list[Window]


class Found(NamedTuple):
    """One feasible split: units before each boundary, and whether its AuxNet runs on the rank above."""

    cuts: list[int]
    above: list[bool]


def relax(problem: Problem, T: float, rounds: int = 0) -> Relaxation | None:
    """Bounds on every label for step time T, or None: then no split meets T.

    Each of `rounds` bounds the labels from the front, too, and then again from the back with what that taught."""
    T = T * (1 + ROUNDING)
    within = problem.within(T)
    K, n = len(problem.speeds), 0 if within is None else len(within.work) - 1
    if within is None or n < K:
        return None
    problem = within
    forced = np.append(np.flatnonzero(problem.forced), n)
    fence = forced[np.searchsorted(forced, np.arange(n), side="right")]
    reached = _reach(problem, fence, T)
    windows = reached and _backward(problem, fence, T, reached)
    for _ in range(rounds):
        reached = windows and _forward(problem, fence, T, windows)
        windows = reached and _backward(problem, fence, T, reached)
    return Relaxation(problem, T, fence, windows) if windows else None


class Reached(NamedTuple):
    """For the cuts from `first` on that stage k may start at: what a label costs at least (inf: out of reach)."""

    first: int
    time: Floats  # arrival
    total: Floats  # arrival + hosted AuxNet work


def _reach(problem: Problem, fence: Ints, T: float) -> list[Reached] | None:
    """How far the stages get within T if nothing but their own work counts, and the least arrival there:
    AuxNets on the fastest rank, the smallest messages."""
    work, n, K = problem.work, len(problem.work) - 1, len(problem.speeds)
    tops, bottoms = [0], [n]
    message = float(problem.delay[1:-1].min()) if n > 1 else 0.0
    arrivals = problem.aux_budget * problem.arrival / problem.speeds.max()
    for k in range(K - 1):
        until = work[tops[k]] + max(0.0, T - arrivals[tops[k]]) * problem.speeds[k]
        tops.append(min(int(np.searchsorted(work, until, side="right")) - 1, int(fence[tops[k]]), n - (K - 1 - k)))
    for k in reversed(range(K)):
        bottoms.append(max(int(np.searchsorted(work, work[bottoms[-1]] - T * problem.speeds[k])), k))
        if bottoms[-1] > tops[k]:
            return None
    spans = [slice(bottom, top + 1) for bottom, top in zip(bottoms[:0:-1], tops, strict=True)]
    times = [arrivals[span] + max(k - 1, 0) * message for k, span in enumerate(spans)]
    return [Reached(span.start, time, time) for span, time in zip(spans, times, strict=True)]


def _forward(problem: Problem, fence: Ints, T: float, windows: list[Window]) -> list[Reached] | None:
    """The least arrival and the least arrival + hosted work of each label that `windows` leaves alive.

    The relaxation mirrors that of `_before`: the two minima may come from different splits, and a running minimum over
    the cuts before may look at one that is not before this cut."""
    r = problem.aux_budget if problem.has_aux else 0.0
    reached = [Reached(0, np.zeros(1), np.zeros(1))]
    for k, after in enumerate(windows[1:]):
        first, time, total = reached[-1]
        here, there = slice(first, first + len(time)), slice(after.first, after.first + len(after.latest))
        speed, host = problem.speeds[k], problem.speeds[k + 1]
        begin = np.maximum(np.arange(here.start, here.stop) + 1 - there.start, 0)
        fenced = np.minimum(fence[here] + 1, there.stop) - there.start

        def least(share: float, value: Floats, prefix: Floats) -> Floats:
            """min of value[cut before] + prefix[this cut] over the cuts from which this one is reached in time."""
            load = total - share * problem.work[here] / speed
            until = np.minimum(np.searchsorted(share * problem.work[there] / speed, T - load, side="right"), fenced)
            bound: Floats = _paint(begin, until, value - prefix[here], there.stop - there.start) + prefix[there]
            return bound

        below = least(1 + r, time, r * problem.arrival / speed) + problem.delay[there]
        early, loaded = below, below
        if problem.has_aux:
            sent = time + problem.delay[here]
            early = np.minimum(below, least(1.0, sent, r * problem.arrival / host))
            loaded = np.minimum(below, least(1.0, sent, r * problem.work / host))
        dead = (early > after.latest) | (loaded > after.room)
        if dead.all():
            return None
        alive = np.flatnonzero(~dead)
        span = slice(int(alive[0]), int(alive[-1]) + 1)
        early, loaded = np.where(dead, np.inf, early)[span], np.where(dead, np.inf, loaded)[span]
        reached.append(Reached(after.first + span.start, early, loaded))
    return reached


def _paint(begin: Ints, until: Ints, value: Floats, size: int) -> Floats:
    """For each of `size` places the least value among the intervals [begin, until) that cover it.

    A sparse table run in reverse: two overlapping power-of-two blocks cover an interval, and blocks push their value
    down to their halves."""
    rows = np.flatnonzero((until > begin) & (value < np.inf))
    begin, until, value = begin[rows], until[rows], value[rows]
    if not len(rows):
        return np.full(size, np.inf)
    level = np.frexp((until - begin).astype(np.float64))[1] - 1
    table = np.full((int(level.max()) + 1, size), np.inf)
    np.minimum.at(table, (level, begin), value)
    np.minimum.at(table, (level, until - (1 << level)), value)
    for above in range(len(table) - 1, 0, -1):
        half = 1 << (above - 1)
        np.minimum(table[above - 1], table[above], out=table[above - 1])
        np.minimum(table[above - 1, half:], table[above, :-half], out=table[above - 1, half:])
    painted: Floats = table[0]
    return painted


def _backward(problem: Problem, fence: Ints, T: float, reached: list[Reached]) -> list[Window] | None:
    windows: list[Window] = []
    for k in reversed(range(len(reached))):
        window = _before(problem, fence, T, k, reached[k], windows[-1] if windows else None)
        alive = np.flatnonzero(window.latest > -np.inf)
        if not len(alive):
            return None
        span = slice(int(alive[0]), int(alive[-1]) + 1)
        windows.append(Window(window.first + span.start, *(bound[span] for bound in window[1:])))
    return windows[::-1]


def _last(problem: Problem, fence: Ints, T: float, reached: Reached) -> Window:
    """The window of the last stage: exact, because nothing is left to choose."""
    span, k = slice(reached.first, reached.first + len(reached.time)), len(problem.speeds) - 1
    room = T - problem.loss - (problem.work[-1] - problem.work[span]) / problem.speeds[k]
    spare = problem.limits[k] - (problem.state[-1] - problem.state[span]) - problem.crossing[span]
    dead = (room < reached.total) | (spare < 0) | (fence[span] < len(problem.work) - 1)
    room = np.where(dead, -np.inf, room)
    return Window(reached.first, room, room, room, spare)


def _before(problem: Problem, fence: Ints, T: float, k: int, reached: Reached, after: Window | None) -> Window:
    """The window of stage k from that of stage k+1. The relaxation: each of the three bounds picks its own next cut,
    and a running maximum over the next cuts may look at one that is not after this cut."""
    if after is None:
        return _last(problem, fence, T, reached)
    first, earliest = reached.first, reached.time
    last = first + len(earliest) - 1
    here, there = slice(first, last + 1), slice(after.first, after.first + len(after.latest))
    r, speed, work, state = problem.aux_budget, problem.speeds[k], problem.work, problem.state
    alive = np.where(after.latest > -np.inf, np.arange(len(after.latest)), len(after.latest))
    alive = np.append(np.minimum.accumulate(alive[::-1])[::-1], len(after.latest))
    weight = _weight(problem, k)
    following = alive[np.clip(np.arange(first, last + 1) + 1 - after.first, 0, len(after.latest))]
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
        latest, blend = room, room

        def peak(height: Floats, offset: Floats) -> Floats:
            """base - cost falls and height + offset rises with the next cut: the best minimum is where they cross."""
            cross = np.searchsorted(height + cost, base - offset)
            best = np.full(len(low), -np.inf)
            for cut in (cross - 1, cross):
                at = np.maximum(np.minimum(cut, high), low)
                best = np.maximum(best, np.minimum(base - cost[at], height[at] + offset))
            return best

        for (value, offset), (height, _) in zip(needs, heights, strict=True) if problem.chain else ():
            latest = np.minimum(latest, peak(height, offset))
            mixed = np.maximum.accumulate((1 - weight) * value - weight * cost)
            blend = np.minimum(blend, peak(mixed, (1 - weight) * offset + weight * base))
        dead |= (room < reached.total) | (latest < earliest) | (blend < earliest) | (spare < 0)
        return [np.where(dead, -np.inf, bound) for bound in (latest, room, blend, spare)]

    hosted = (after.spare - r * state[there], -r * state[here])
    options = [option(share, needs, hosted if above else None)
               for above, (share, needs) in enumerate(_options(problem, k, here, there, after, slice(None)))]
    return Window(first, *(np.maximum.reduce(bounds) for bounds in zip(*options, strict=True)))


def _options(problem: Problem, k: int, here: slice | Ints, there: slice | Ints, after: Window, at: slice | Ints,
             ) -> list[tuple[float, list[tuple[Floats, Floats]]]]:
    """AuxNet_k below, then above: the share of the stage's work that rank k pays, and pairs (value, offset) that ask
    value[next cut] + offset[this cut] >= arrival, so that the next label stays within its bounds."""
    r, speed, work, arrival, delay = 0.0, problem.speeds[k], problem.work, problem.arrival, problem.delay
    if problem.has_aux:
        r, host = problem.aux_budget, problem.speeds[k + 1]
    latest, room, blend = after.latest[at], after.room[at], after.blend[at]
    below = (latest - r * arrival[there] / speed - delay[there], r * arrival[here] / speed)
    if not problem.has_aux:
        return [(1.0, [below])]
    start = (latest - r * arrival[there] / host, r * arrival[here] / host - delay[here])
    hosting = (room - r * work[there] / host, r * work[here] / host - delay[here])
    needs = [start, hosting]
    if problem.chain:
        weight = _weight(problem, k + 1)
        both = r * (weight * work + (1 - weight) * arrival) / host
        needs.append((blend - both[there], both[here] - delay[here]))
    return [(1 + r, [below]), (1.0, needs)]


def _weight(problem: Problem, k: int) -> float:
    """Arrival may rise by this much less for each ms that rank k hosts: the cut after stage k moves down to make room,
    and the stages after it share what that gives them to do. A guess; any weight from 0 to 1 gives a valid bound."""
    return WEIGHT / (WEIGHT + (1 + problem.aux_budget) * (len(problem.speeds) - 1 - k))


class Labels(NamedTuple):
    """The labels of one boundary, as columns."""

    cut: Ints
    start: Ints
    time: Floats
    crossed: Floats  # bytes over all boundaries so far
    above: Ints  # how many AuxNets so far run on the rank above
    parent: Ints

    def take(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> Labels:
        return Labels(*(column[rows] for column in self))


def search(relaxation: Relaxation, beam: int | None, by_bytes: bool = False) -> tuple[Found | None, bool]:
    """A split that meets T, and whether the search was complete: (None, True) proves that there is none.

    With a beam, keep so many labels a boundary: those with most slack, or those that sent least (`by_bytes`)."""
    zero = np.zeros(1, dtype=np.int64)
    history = [Labels(zero, zero, np.zeros(1), np.zeros(1), zero, zero)]
    complete = True
    for k in range(len(relaxation.problem.speeds) - 1):
        labels, thinned = _advance(relaxation, k, history[-1], beam is not None, by_bytes)
        complete &= not thinned
        if beam is not None and len(labels.cut) > beam:
            complete = False
            order = np.lexsort((labels.above, labels.crossed)) if by_bytes else np.argsort(
                -_slack(relaxation, k + 1, labels), kind="stable")
            labels = labels.take(np.sort(order[:beam]))
        if not len(labels.cut):
            return None, complete
        history.append(labels)
    row = int(np.lexsort((history[-1].above, history[-1].crossed))[0])
    cuts: list[int] = []
    above: list[bool] = []
    for labels in reversed(history[1:]):
        cuts.append(int(relaxation.problem.position[labels.cut[row]]))
        above.append(bool(labels.start[row] < labels.cut[row]))
        row = int(labels.parent[row])
    return Found(cuts[::-1], above[::-1]), complete


def _hosted(problem: Problem, k: int, labels: Labels) -> tuple[Floats, Floats]:
    """What AuxNet_{k-1} adds to rank k besides the arrival: ms and bytes."""
    late, r = problem.work - problem.arrival, problem.aux_budget
    return (r * (late[labels.cut] - late[labels.start]) / problem.speeds[k],
            r * (problem.state[labels.cut] - problem.state[labels.start]))


def _slack(relaxation: Relaxation, k: int, labels: Labels) -> Floats:
    """How far a label stays inside the bounds of its window, in ms; -inf where it does not."""
    window = relaxation.windows[k]
    at, (extra, kept) = labels.cut - window.first, _hosted(relaxation.problem, k, labels)
    slack = np.minimum(window.latest[at] - labels.time, window.room[at] - labels.time - extra)
    slack = np.minimum(slack, window.blend[at] - labels.time - _weight(relaxation.problem, k) * extra)
    return np.where((slack < 0) | (kept > window.spare[at]), -np.inf, slack)


def _advance(relaxation: Relaxation, k: int, labels: Labels, thin: bool, by_bytes: bool) -> tuple[Labels, bool]:
    """The labels of boundary k+1 from those of boundary k, without the dominated, and whether any cut was left out."""
    problem, after = relaxation.problem, relaxation.windows[k + 1]
    following = after.first + np.flatnonzero(after.latest > -np.inf)
    ranges = _ranges(relaxation, k, labels, following)
    if not by_bytes:
        kept = _unbeaten(relaxation, k, labels, following, ranges)
        ranges = [(low[kept], high[kept]) for low, high in ranges]
    else:
        kept = np.arange(len(labels.cut))
    origin, labels = kept, labels.take(kept)
    thinned = thin and sum(int((high - low).sum()) for low, high in ranges) > PAIRS
    if thinned:
        order = np.random.default_rng(0).permutation(len(following))
        if by_bytes:
            order = order[np.argsort(problem.crossing[following[order]], kind="stable")]
        following = following[np.sort(order[: PAIRS // (2 * len(labels.cut))])]
        ranges = _ranges(relaxation, k, labels, following)
    parts: list[Labels] = []
    for above, (low, high) in enumerate(ranges):
        counts = high - low
        chunks = np.flatnonzero(np.diff(np.cumsum(counts) // CHUNK)) + 1
        for rows in np.split(np.arange(len(counts)), chunks):
            count = counts[rows]
            parent = np.repeat(rows, count)
            offset = np.repeat(low[rows] - np.cumsum(count) + count, count)
            parts.append(_extend(relaxation, k, labels, parent, following[np.arange(len(parent)) + offset], bool(above)))
    new = _undominated(relaxation, Labels(*map(np.concatenate, zip(*parts, strict=True))), by_bytes)
    return new._replace(parent=origin[new.parent]), thinned


def _unbeaten(relaxation: Relaxation, k: int, labels: Labels, following: Ints, ranges: list[tuple[Ints, Ints]]) -> Ints:
    """The labels without those that a label further on beats, whatever they do next.

    A label l at a later cut that still lies before every next cut of label m can take over m's future: its stage is m's
    without the first units. It is as good if it is as early, with and without its message, and rank k is done as soon."""
    problem, cut = relaxation.problem, labels.cut
    extra, kept = _hosted(problem, k, labels)
    chain, r = problem.aux_budget * problem.arrival[cut], problem.speeds
    host = problem.speeds[k + 1]
    criteria = [labels.time - chain / problem.speeds[k], labels.time + problem.delay[cut] - chain / host,
                labels.time + extra - problem.work[cut] / problem.speeds[k]]
    if np.isfinite(problem.limits).any():
        criteria.append(kept + problem.crossing[cut] - problem.state[cut])
    padded = np.append(following, len(problem.work))
    reach = np.minimum.reduce([np.where(high > low, padded[low], len(problem.work)) for low, high in ranges])
    rows = np.flatnonzero(np.logical_or.reduce([high > low for low, high in ranges]))
    table = np.stack([c[rows] for c in criteria])
    cuts, reach = cut[rows], reach[rows]
    order = np.lexsort((-cuts, table[0] + table[1]))
    rows, table, cuts, reach = rows[order], table[:, order], cuts[order], reach[order]
    for champion in range(CHAMPIONS):
        if champion >= len(rows):
            break
        keep = (cuts > cuts[champion]) | (cuts[champion] >= reach)
        keep |= (table < table[:, champion, None]).any(axis=0)
        keep[: champion + 1] = True
        rows, table, cuts, reach = rows[keep], table[:, keep], cuts[keep], reach[keep]
    return np.sort(rows)


def _ranges(relaxation: Relaxation, k: int, labels: Labels, following: Ints) -> list[tuple[Ints, Ints]]:
    """For AuxNet_k below, then above: each label's range in `following` of the cuts that may come next."""
    problem, after = relaxation.problem, relaxation.windows[k + 1]
    at, work = following - after.first, problem.work[following]
    left = (relaxation.T - labels.time - _hosted(problem, k, labels)[0]) * problem.speeds[k]
    ranges = []
    for share, needs in _options(problem, k, labels.cut, following, after, at):
        high = np.minimum(np.searchsorted(work, problem.work[labels.cut] + left / share, side="right"),
                          np.searchsorted(following, relaxation.fence[labels.cut], side="right"))
        low = np.searchsorted(following, labels.cut, side="right")
        for value, offset in needs:
            low = np.maximum(low, np.searchsorted(np.maximum.accumulate(value), labels.time - offset))
        ranges.append((low, np.maximum(low, high)))
    return ranges


def _extend(relaxation: Relaxation, k: int, labels: Labels, parent: Ints, cut: Ints, above: bool) -> Labels:
    """Stage k = units between the parent's cut and `cut`, its AuxNet on rank k or on the rank above."""
    problem, old = relaxation.problem, labels.cut[parent]
    chain = problem.aux_budget * (problem.arrival[cut] - problem.arrival[old]) / problem.speeds[k + above]
    time = labels.time[parent] + chain + (problem.delay[old] if above else problem.delay[cut])
    new = Labels(cut, old if above else cut, time, labels.crossed[parent] + problem.crossing[cut],
                 labels.above[parent] + above, parent)
    keep = _slack(relaxation, k + 1, new) > -np.inf
    if np.isfinite(problem.limits[k]):
        share = 1 + problem.aux_budget if problem.has_aux and not above else 1.0
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


def minimise(attempt: Callable[[float], Relaxation | None], price: Callable[[Found], float],
             low: float, high: float) -> tuple[Found, float] | None:
    """The split of least price, and the largest value proven too small; None if not even `high` is feasible.

    `attempt(value)` is the relaxation for that value; no split is cheaper than `low`.
    """
    relaxation = attempt(low)
    if relaxation is not None and (found := _decide(relaxation, BEAMS)):
        return found, low
    lower, upper, width = low, low, 1e-3 * max(low, 1e-9 * high)
    while attempt(upper := min(lower + width, high)) is None:
        if upper >= high:
            return None
        lower, width = upper, 4 * width
    while upper - lower > 0.25 * TOLERANCE * upper:
        middle = 0.5 * (lower + upper)
        lower, upper = (lower, middle) if attempt(middle) else (middle, upper)
    best, value, width, probe = None, np.inf, 1e-5 * upper, upper
    descend = False
    while value - lower > TOLERANCE * value or best is None:
        relaxation = attempt(probe)
        if relaxation is not None and (found := _decide(relaxation, (*BEAMS, None))):
            best, value = found, min(value, price(found))
        elif probe >= high:
            return None
        else:
            lower = probe
        if best is None:
            probe, width = min(probe + width, high), 4 * width
        else:
            descend = not descend
            probe = value * (1 - 0.5 * TOLERANCE) if descend else 0.5 * (lower + value)
    return best, lower


def _decide(relaxation: Relaxation, beams: tuple[int | None, ...]) -> Found | None:
    for beam in beams:
        found, complete = search(relaxation, beam)
        if found or complete:
            return found
    return None
