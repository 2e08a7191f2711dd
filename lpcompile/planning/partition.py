"""The planner by a method's name: `passes.partition` with the method's record looked up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lpcompile.core.cost import Profile
from lpcompile.passes.partition import evaluate as costs
from lpcompile.passes.partition import partition as planner
from lpcompile.passes.partition.evaluate import Partition
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
