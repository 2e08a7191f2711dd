"""β over time: how much the penalty weighs.

>>> parse(1.0)                                    # constant
>>> parse({0: 0.5, 1000: 1.0, 4000: 3.0})         # from these steps on
>>> exponential(0.5, 3.0, steps=5000)             # smoothly
>>> adaptive(0.5, target=0.05, most=10.0)         # up while the violation is above the target, down while below
>>> relative(40.0, most=3.0)                      # by the size of the loss's gradient in λ

Why `relative`: under `multiplier` a stage minimises p·X + β ψ(λ, X), which for the scale-free ψ is a regression of X
on λ - p |X|²/(2β). Nothing but β keeps that step short, for p is taken at λ and does not see where X goes; to first
order it changes the loss by (|p||X|)²/(2β). |p||X| was 20 for a small ResNet and 200 for a small ViT at their first
step, and falls as they learn, so no constant serves both: β = (|p||X|)²/tolerance asks the same of every model, up
to a multiple of |p||X|: a penalty whose gradient is many times the loss's makes λ = X = constant, or SGD overshoot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lpcompile.errors import UsageError

# relative, for K stages
TOLERANCE = 80.0  # divided by K: how far a step may change the loss
MIN_BETA = 3.0
MAX_BETA_PER_PULL = 1.5  # times K |p||X|
MAX_OUTLIER = 2.0  # times the running mean of |p||X|
# rising, the default of most methods: a small β at first, or λ = X = constant is the easiest way out
RISING_START, RISING_END, RISING_STEPS = 0.5, 3.0, 2000


@dataclass(frozen=True)
class Beta:
    """β at a step, for one boundary. `kind` says which of the other fields count."""

    kind: str
    start: float = 1.0
    end: float = 1.0
    steps: int = 0  # 0: the length of training, or RISING_STEPS
    table: tuple[tuple[int, float], ...] = ()
    target: float = 0.0
    rate: float = 0.01

    def at(self, step: int, total: int | None) -> float:
        if self.kind == "constant":
            return self.start
        if self.kind == "steps":
            return next((value for first, value in reversed(self.table) if step >= first), self.table[0][1])
        share = min(1.0, step / (self.steps or total or RISING_STEPS))
        return float(self.start * (self.end / self.start) ** share)


@dataclass
class BetaState:
    """β of one boundary during training; every rank that needs it sees the same violations in the same order."""

    rule: Beta
    total: int | None = None
    now: float | Tensor = field(init=False)  # an adaptive β; of a relative one the running mean of |p||X|

    def __post_init__(self) -> None:
        self.now = self.rule.start

    def use(self, rule: Beta, total: int | None) -> None:
        """Follow this rule; the same one goes on from its current value."""
        if rule != self.rule:
            self.rule, self.now = rule, rule.start
        self.total = total

    def at(self, step: int) -> float | Tensor:
        if self.rule.kind == "adaptive":
            return self.now
        if self.rule.kind == "relative":
            if not isinstance(self.now, Tensor):
                return self.rule.start
            return (self.now * (self.now / self.rule.target).clamp(max=self.rule.end)).clamp(min=self.rule.start)
        return self.rule.at(step, self.total)

    def saw(self, violation: float) -> None:
        if self.rule.kind == "adaptive":
            factor = 1 + self.rule.rate if violation > self.rule.target else 1 / (1 + self.rule.rate)
            self.now = min(max(float(self.now) * factor, self.rule.start / 10), self.rule.end)

    def felt(self, pull: Tensor) -> None:
        """Add |p||X| of a micro-batch to the running mean that `relative` follows. Stays on its device.

        One micro-batch counts as at most MAX_OUTLIER times the mean: a channel of λ that hardly varies for a moment
        makes p ten thousand times as large (a BatchNorm divides by it), and β with it for as long as the mean
        remembers. A mean below the one of the smallest β, as after a last layer that starts at zero, counts as that.
        """
        if self.rule.kind != "relative":
            return
        if isinstance(self.now, Tensor):
            least = (self.rule.start * self.rule.target) ** 0.5
            limit = MAX_OUTLIER * self.now.clamp(min=least)
            self.now = torch.lerp(self.now, torch.minimum(pull, limit), self.rule.rate)
        else:
            self.now = pull


def constant(value: float) -> Beta:
    return Beta("constant", _positive(value))


def exponential(start: float = RISING_START, end: float = RISING_END, steps: int = 0) -> Beta:
    return Beta("exponential", _positive(start), _positive(end), steps)


def adaptive(start: float = RISING_START, *, target: float = 0.05, most: float = 10.0, rate: float = 0.01) -> Beta:
    return Beta("adaptive", _positive(start), _positive(most), target=_positive(target), rate=_positive(rate))


def relative(tolerance: float, most: float, *, least: float = MIN_BETA, rate: float = 0.05) -> Beta:
    """most: largest β, as a multiple of |p||X|; least: smallest β, also before the first p; rate: of the running mean
    of |p||X|."""
    return Beta("relative", _positive(least), _positive(most), target=_positive(tolerance), rate=_positive(rate))


def parse(given: Any, default: str = "rising", K: int = 2) -> Beta:
    """A Beta from a user's option; None is the method's default. K: stages, whose errors add up."""
    given = default if given is None else given
    if isinstance(given, Beta):
        return given
    if given == "rising":
        return exponential()
    if given == "relative":
        return relative(TOLERANCE / K, MAX_BETA_PER_PULL * K)
    if given == "adaptive":
        return adaptive()
    if isinstance(given, Mapping) and given:
        table = tuple(sorted((int(step), _positive(value)) for step, value in given.items()))
        return Beta("steps", table[0][1], table=table)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return constant(given)
    raise UsageError(
        f"beta={given!r} is not a number, a dict of steps, 'rising', 'adaptive', 'relative', "
        f"or one of lpcompile.runtime.penalty.beta.constant, exponential, adaptive, relative"
    )


def _positive(value: Any) -> float:
    if not isinstance(value, (int, float)) or not value > 0:
        raise UsageError(f"β and its rates are positive numbers, not {value!r}")
    return float(value)
