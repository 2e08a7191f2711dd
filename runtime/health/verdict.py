"""The verdict at the end of a run, for every method: has the model learnt more than chance?"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from lpcompile.runtime.health.advice import advice
from lpcompile.runtime.health.check import LEARNT, first_loss
from lpcompile.runtime.health.collapse import INFINITE

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

log = logging.getLogger("lpcompile")
MIN_STEPS = 20  # of a shorter run nothing can be said
NEAR = 0.05  # of the way from chance to 1


@dataclass(frozen=True)
class Chance:
    """What a model that ignores its input reaches on some targets: the most frequent class, and their entropy."""

    accuracy: float
    loss: float


def chance_of(counts: dict[int, int]) -> Chance | None:
    """From the number of samples in each class; None without any."""
    total = sum(counts.values())
    if not total:
        return None
    shares = [n / total for n in counts.values() if n]
    return Chance(max(shares), -sum(s * math.log(s) for s in shares))


def count_classes(counts: dict[int, int], target: Tensor) -> None:
    for k in target.flatten().tolist():
        counts[k] = counts.get(k, 0) + 1


def verdict(engine: Engine, shown: dict[str, float]) -> str:
    """A warning where the model ends at chance or gives values that are not finite, else "".

    shown: figures of the model, by "test ..." and "train ...".
    All ranks call it; one process says it.
    """
    own = first_loss(engine)
    for w in engine.workers:
        if w.last and "loss" in w.means:
            own["last loss"] = w.means["loss"]
    if engine.chance is not None:
        own |= {"accuracy": engine.chance.accuracy, "entropy": engine.chance.loss}
    seen = engine.gather(own)
    why = _why(shown, seen) if engine.steps >= MIN_STEPS else ""
    odd = next((name for name, value in shown.items() if not math.isfinite(value)), None)
    if odd is not None:
        text = f"after {engine.steps} steps the model's {odd} is {shown[odd]}, with weights that are finite; {INFINITE}"
    elif why:
        text = f"after {engine.steps} steps the model is at chance: {why}; {advice(engine.target, 'chance')}"
    else:
        return ""
    if engine.main:
        log.warning(text)
    return text


def _why(shown: dict[str, float], seen: dict[str, float]) -> str:
    rights = [name for name in shown if name.endswith("accuracy") and not name.startswith("aux")]
    if rights and "accuracy" in seen:
        best, chance = max(rights, key=lambda name: shown[name]), seen["accuracy"]
        if shown[best] <= min(chance + NEAR * (1 - chance), 1.5 * chance):
            return f"{best} {100 * shown[best]:.1f} %, where the most frequent class alone has {100 * chance:.1f} %"
        return ""
    losses = [value for name, value in shown.items() if name.endswith("loss")]
    losses += [seen["last loss"]] if "last loss" in seen and not losses else []
    if losses and "first loss" in seen and min(losses) > LEARNT * seen["first loss"]:
        return f"its loss is {min(losses):.3g} and was {seen['first loss']:.3g} at first"
    return ""
