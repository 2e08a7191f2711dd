"""`zbh2`: an exact pipeline whose ranks are never idle (ZB-H2, Qi et al. 2023), in which no step waits for the last.

A rank may have up to 2(K-r)-1 micro-batches in flight, puts weight gradients (W) off until it has nothing else to do,
and goes on to the next step as soon as its own optimizer has stepped: rank 0 begins a step while the ranks above
still compute the weight gradients of the one before. The first stage has no input gradients, so its backward (B) stays
whole. One step at K = 2 and M = 4, with forward, input gradient (I) and weight gradient of equal cost:

    time      0  1  2  3  4  5  6  7  8  9  10 11 12 13
    rank 0    F0 F1 F2 B0    F3 B1    B2    B3    ↑F0 …
    rank 1       F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3 ↑F0 …

Every forward and backward of a step uses the weights of that step, so gradients are those of plain training on the same
micro-batches. From 2K-1 micro-batches on no rank waits for another if their work is equal; fewer leave a bubble. Rank
r keeps the graphs of at most 2(K-r)-1 micro-batches, and of 2r+3 more whose weight gradients are put off.
"""

from __future__ import annotations

from functools import lru_cache

from lpcompile.core.method import BatchFacts, Order
from lpcompile.core.micro_batches import BACKWARD, FORWARD, INPUT, WEIGHT
from lpcompile.runtime.methods.pipelines import pipeline, unfilled

NORM_SAMPLES = 16  # lower limit for the samples of a micro-batch where BatchNorm takes statistics over them
MIN_SAMPLES = 2


class _Line:
    """One rank while its order is being made, in units of the time of one forward."""

    def __init__(self, rank: int, K: int, M: int) -> None:
        self.rank, self.M = rank, M
        self.most_alive, self.most_waiting = 2 * (K - rank) - 1, 2 * rank + 2
        self.forwards, self.backwards, self.weights = 0, 0, 0 if rank else M
        self.actions: list[tuple[str, int, int]] = []
        self.free = 0

    @property
    def over(self) -> bool:
        return self.backwards == self.weights == self.M

    def choose(self, X: bool, p: bool) -> str:
        """The next action where X has come from below, and p from above: a forward keeps the ranks above busy."""
        waiting = self.backwards - self.weights
        forward = X and self.forwards < self.M and self.forwards - self.backwards < self.most_alive
        if forward and waiting <= self.most_waiting:
            return FORWARD
        if p and self.backwards < self.forwards:
            return INPUT if self.rank else BACKWARD
        return WEIGHT if waiting > 0 else FORWARD if forward else ""

    def act(self, kind: str, now: int) -> None:
        count = {FORWARD: self.forwards, WEIGHT: self.weights}.get(kind, self.backwards)
        self.actions.append((kind, count, self.rank))
        self.forwards += kind == FORWARD
        self.weights += kind == WEIGHT
        self.backwards += kind in (INPUT, BACKWARD)
        self.free = now + (2 if kind == BACKWARD else 1)


@lru_cache(maxsize=256)
def run_on(K: int, M: int) -> Order:
    """Each rank's actions: the ranks are played against each other with costs of one unit."""
    lines = [_Line(rank, K, M) for rank in range(K)]
    up: dict[tuple[int, int], int] = {}  # when X of (rank, micro-batch) was made, and p
    down: dict[tuple[int, int], int] = {}
    now = 0
    while not all(line.over for line in lines):
        for r, line in enumerate(lines):
            if line.free > now or line.over:
                continue
            X = r == 0 or up.get((r - 1, line.forwards), now + 1) <= now
            p = r == K - 1 or down.get((r + 1, line.backwards), now + 1) <= now
            kind = line.choose(X, p)
            if kind:
                done = up if kind == FORWARD else down
                at = line.forwards if kind == FORWARD else line.backwards
                line.act(kind, now)
                if kind != WEIGHT:
                    done[r, at] = line.free
        now += 1
    return tuple(tuple(line.actions) for line in lines)


def run_on_micro(facts: BatchFacts) -> int | None:
    """Default without measurements: as if each micro-batch took the time of two samples besides its own."""
    choices, batch = run_on_choices(facts), facts.batch or 16 * facts.K

    def step(M: int) -> float:
        size = -(-batch // M)
        waiting = (unfilled(facts.K, M) + unfilled(facts.K, max(1, M - 1))) / 2  # half a micro-batch in reserve
        return M * (size + 2) * (1 + (facts.K - 1) * waiting)

    return min(choices, key=step) if choices else 1


def run_on_choices(facts: BatchFacts) -> tuple[int, ...]:
    """Up to 2K micro-batches, which fill all ranks; of at least 16 samples where there is BatchNorm."""
    if facts.K == 1 or not facts.free:
        return ()
    batch = facts.batch or 2 * facts.K * NORM_SAMPLES
    most = min(2 * facts.K, batch // (NORM_SAMPLES if facts.norm else MIN_SAMPLES))
    return tuple(range(2, most + 1)) if most > 1 else (1,)


ZERO_BUBBLE_H2 = pipeline(
    "zbh2",
    "exact pipeline without bubble from 2K-1 micro-batches on: weight gradients put off, steps follow without a flush",
    own_order=run_on,
    default_micro=run_on_micro,
    micro_choices=run_on_choices,
    bubble=unfilled,
    splits_backward=True,
)
