"""β over time: how much the penalty weighs.

>>> parse(1.0)                                    # constant
>>> parse({0: 0.5, 1000: 1.0, 4000: 3.0})         # from these steps on
>>> exponential(0.5, 3.0, steps=5000)             # smoothly
>>> adaptive(0.5, target=0.05, most=10.0)         # up while the violation is above the target, down while below
>>> relative(2.0)                                 # in proportion to what the loss wants of λ

Why `relative`: under `multiplier` a stage minimises p·X + β ψ(λ, X), which for the scale-free ψ is a regression of X on
λ - p |X|²/(2β): it asks for a step away from λ of |p||X|/(2β) times X's own size, and nothing but β keeps that step short,
for p is taken at λ and does not see where X goes. |p||X| is 20 for a small ResNet and 200 for a small ViT at their first
step, and falls tenfold as they learn, so no constant serves both. With β = c |p||X| the step is 1/(2c) for every model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lpcompile.errors import UsageError

FACTOR = 2.0  # relative: X may be asked to leave λ by a quarter of its own size
START, END, STEPS = 0.5, 3.0, 2000  # rising, the default for most methods: a small β at first, or λ = X = constant is the easiest way out


@dataclass(frozen=True)
class Beta:
    """β at a step, for one boundary. `kind` says which of the other fields count."""

    kind: str
    start: float = 1.0
    end: float = 1.0
    steps: int = 0  # 0: as long as training lasts, where that is known
    table: tuple[tuple[int, float], ...] = ()
    target: float = 0.0
    rate: float = 0.01
    factor: float = 1.0

    def at(self, step: int, total: int | None) -> float:
        if self.kind == "constant":
            return self.start
        if self.kind == "steps":
            return next((value for first, value in reversed(self.table) if step >= first), self.table[0][1])
        share = min(1.0, step / (self.steps or total or STEPS))
        return float(self.start * (self.end / self.start) ** share)


@dataclass
class BetaState:
    """β of one boundary as training goes on; every rank that needs it sees the same violations in the same order."""

    rule: Beta
    total: int | None = None
    now: float | Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.now = self.rule.start

    def use(self, rule: Beta, total: int | None) -> None:
        """Go on by another rule; by the same one from where it is."""
        if rule != self.rule:
            self.rule, self.now = rule, rule.start
        self.total = total

    def at(self, step: int) -> float | Tensor:
        return self.now if self.rule.kind in ("adaptive", "relative") else self.rule.at(step, self.total)

    def saw(self, violation: float) -> None:
        if self.rule.kind == "adaptive":
            factor = 1 + self.rule.rate if violation > self.rule.target else 1 / (1 + self.rule.rate)
            self.now = min(max(float(self.now) * factor, self.rule.start / 10), self.rule.end)

    def felt(self, pull: Tensor) -> None:
        """|p||X| of a micro-batch: what `relative` follows, as a running mean. Stays on its device."""
        if self.rule.kind == "relative":
            wanted = self.rule.factor * pull
            self.now = torch.lerp(self.now, wanted, self.rule.rate) if isinstance(self.now, Tensor) else wanted


def constant(value: float) -> Beta:
    return Beta("constant", _positive(value))


def exponential(start: float = START, end: float = END, steps: int = 0) -> Beta:
    return Beta("exponential", _positive(start), _positive(end), steps)


def adaptive(start: float = START, *, target: float = 0.05, most: float = 10.0, rate: float = 0.01) -> Beta:
    return Beta("adaptive", _positive(start), _positive(most), target=_positive(target), rate=_positive(rate))


def relative(factor: float = FACTOR, *, start: float = 10.0, rate: float = 0.05) -> Beta:
    """start: β until the first p has come."""
    return Beta("relative", _positive(start), rate=_positive(rate), factor=_positive(factor))


def parse(given: Any, default: str = "rising") -> Beta:
    """A Beta from what users write; None is the method's own."""
    given = default if given is None else given
    if isinstance(given, Beta):
        return given
    if given == "rising":
        return exponential()
    if given == "relative":
        return relative()
    if given == "adaptive":
        return adaptive()
    if isinstance(given, Mapping) and given:
        table = tuple(sorted((int(step), _positive(value)) for step, value in given.items()))
        return Beta("steps", table[0][1], table=table)
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return constant(given)
    raise UsageError(
        f"beta={given!r} is not a number, a dict of steps, 'rising', 'adaptive', 'relative', "
        f"or one of lpcompile.runtime.beta.constant, exponential, adaptive, relative"
    )


def _positive(value: Any) -> float:
    if not isinstance(value, (int, float)) or not value > 0:
        raise UsageError(f"β and its rates are positive numbers, not {value!r}")
    return float(value)
