"""The planner by a method's name: `passes.partition` with the method's record looked up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from lpcompile.core.cost import Profile
from lpcompile.passes.partition import evaluate as costs
from lpcompile.passes.partition import partition as planner
from lpcompile.passes.partition.evaluate import Partition
from lpcompile.passes.profile.split_backward_cost import BackwardShares
from lpcompile.runtime.methods import DEFAULT, get_method


def partition(profile: Profile, K: int, *, method: str = DEFAULT, **options: Any) -> Partition:
    """The split with the smallest step, provably, up to `gap`; options as of `passes.partition.partition`.

    >>> split = partition(profile, K=4, method="penalty", link=Link(bytes_per_ms=12e6))
    >>> split.cuts, split.step, split.gap
    """
    return planner.partition(profile, K, method=get_method(method), **options)


def evaluate(
    profile: Profile,
    cuts: Sequence[int],
    aux_ranks: Sequence[int] | None = None,
    *,
    method: str = DEFAULT,
    **options: Any,
) -> Partition:
    """What this split costs."""
    return costs.evaluate(profile, cuts, aux_ranks, method=get_method(method), **options)


def auto_stages(profile: Profile, *, method: str = DEFAULT, **options: Any) -> Partition:
    """The split for K="auto"."""
    return planner.auto_stages(profile, method=get_method(method), **options)


def slowed(
    profile: Profile,
    cuts: Sequence[int],
    shares: Sequence[BackwardShares],
    speeds: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """The speeds of ranks whose backwards run in two parts, which take `shares` of the undivided backward."""
    found = []
    for k, (low, high) in enumerate(pairwise((0, *cuts, len(profile.units)))):
        forward = sum(u.forward for u in profile.units[low:high])
        backward = sum(u.backward for u in profile.units[low:high])
        apart = forward + sum(shares[k]) * backward
        found.append((speeds[k] if speeds else 1.0) * ((forward + backward) / apart if apart else 1.0))
    return tuple(found)
