"""Options of a partition: pins, speeds and memory limits, checked, with errors that say what to do."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from lpcompile.core.cost import Profile
from lpcompile.errors import PlanError, UsageError


@dataclass(frozen=True)
class Pins:
    """What the user fixes, by unit names or prefixes of them at a dot ("layer2" is all of layer2).

    Each of `cut_after` ends a stage; no cut falls inside a span of `together`: a (first, last) pair, or one prefix.
    """

    cut_after: tuple[str, ...] = ()
    together: tuple[tuple[str, str] | str, ...] = ()


def resolve(pins: Pins | Mapping[str, Any] | None, names: list[str]) -> tuple[set[int], set[int]]:
    """The cuts that must and the cuts that must not be made."""
    if isinstance(pins, Mapping):
        if unknown := set(pins) - {"cut", "together"}:
            raise UsageError(f"pins has unknown keys {sorted(unknown)}: use 'cut' and 'together'.")
        spans = tuple(span if isinstance(span, str) else tuple(span) for span in pins.get("together", ()))
        pins = Pins(tuple(pins.get("cut", ())), spans)
    pins = pins or Pins()

    def matches(wanted: str) -> list[int]:
        found = [at for at, name in enumerate(names) if name == wanted or name.startswith(wanted + ".")]
        if not found:
            close = get_close_matches(wanted, dict.fromkeys(names), n=3, cutoff=0.0)
            raise PlanError(
                f"pins name {wanted!r}, and no unit has that name or prefix. The closest are "
                f"{', '.join(map(repr, close))}."
            )
        return found

    forced = {matches(name)[-1] + 1 for name in pins.cut_after} - {len(names)}
    forbidden: set[int] = set()
    for span in pins.together:
        ends = [matches(name) for name in ((span,) if isinstance(span, str) else span)]
        first, last = min(ends[0][0], ends[-1][0]), max(ends[0][-1], ends[-1][-1])
        forbidden.update(range(first + 1, last + 1))
    return forced, forbidden


def check(
    profile: Profile,
    K: int,
    aux_budget: float | Sequence[float],
    speeds: Sequence[float] | None,
    state_factor: float,
) -> list[float]:
    """Refuse invalid options; return the speeds."""
    if isinstance(K, bool) or not hasattr(K, "__index__") or operator.index(K) < 1:
        raise UsageError(f"K={K!r} is no number of stages: give an int of at least 1.")
    units = profile.units
    if len(units) < K:
        raise PlanError(
            f"the model has {len(units)} units between legal cuts, so at most {len(units)} stages; "
            f"ask for K<={len(units)}, not K={K}.",
            most=len(units),
        )
    if not isinstance(aux_budget, Sequence) and not 0 <= aux_budget <= 1:
        raise UsageError(f"aux_budget={aux_budget!r} is no share of a stage: give a number from 0 to 1.")
    if isinstance(aux_budget, Sequence) and len(aux_budget) != K - 1:
        raise UsageError(f"aux_budget has {len(aux_budget)} shares, and K={K} stages have {K - 1} AuxNets.")
    rates = [1.0] * K if speeds is None else [float(speed) for speed in speeds]
    if len(rates) != K or not all(0 < rate < math.inf for rate in rates):
        raise UsageError(f"speeds={list(rates)} must be {K} positive numbers, one a rank for K={K}.")
    for unit in units:
        costs = (unit.forward, unit.backward, unit.parameter_bytes, unit.saved_bytes, unit.output_bytes)
        if not all(0 <= cost < math.inf for cost in costs):
            raise UsageError(
                f"unit {unit.name!r} costs {unit.forward} ms forward, {unit.backward} ms backward, "
                f"{costs[2:]} bytes (parameter, saved, output): costs must be finite and not negative. "
                f"Profile again."
            )
    for name, value in (("profile.loss", profile.loss), ("state_factor", state_factor)):
        if not 0 <= value < math.inf:
            raise UsageError(f"{name}={value} must be finite and not negative.")
    return rates


def memory_limits(memory_limit: float | Sequence[float] | None, K: int) -> list[float]:
    one = math.inf if memory_limit is None else memory_limit
    given = list(one) if isinstance(one, Sequence) else [one] * K
    if len(given) != K or not all(limit > 0 for limit in given):
        raise UsageError(f"memory_limit={memory_limit} must be one positive number of bytes, or {K}, one a rank.")
    return [float(limit) for limit in given]


def aux_shares(aux_budget: float | Sequence[float], K: int) -> list[float]:
    """The cost of each AuxNet as a share of its stage's."""
    return [float(s) for s in aux_budget] if isinstance(aux_budget, Sequence) else [float(aux_budget)] * (K - 1)
