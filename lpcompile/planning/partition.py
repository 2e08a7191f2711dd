"""The planner by a method's name: `passes.partition` with the method's record looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from lpcompile.core.cost import Profile
from lpcompile.errors import PlanError
from lpcompile.passes.partition import evaluate as costs
from lpcompile.passes.partition import partition as planner
from lpcompile.passes.partition.evaluate import Partition
from lpcompile.passes.profile.split_backward_cost import BackwardShares
from lpcompile.runtime.methods import DEFAULT, get_method


def partition(profile: Profile, K: int, *, method: str = DEFAULT, **options: Any) -> Partition:
    """The split for K ranks with the smallest step, provably, up to `gap`; options as of `passes.partition.partition`.

    >>> split = partition(profile, K=4, method="penalty", link=Link(bytes_per_ms=12e6))
    >>> split.cuts, split.step, split.gap

    Of virtual stages, the largest is made as small as can be; what the ranks' sums lose by that is in `gap`.
    """
    traits = get_method(method)
    ranks = traits.ranks(K)
    if not ranks:
        return planner.partition(profile, K, method=traits, **options)
    if len(profile.units) < len(ranks):
        most = len(profile.units) // traits.chunks
        raise PlanError(
            f"the model has {len(profile.units)} units between legal cuts, and {method!r} puts {traits.chunks} stages "
            f"on a rank; ask for K<={most}, not K={K}.",
            most=most,
        )
    options["speeds"] = by_stage(options.get("speeds"), ranks)
    limit = options.pop("memory_limit", None)
    limit = list(by_stage(limit, ranks) or ()) if isinstance(limit, Sequence) else limit
    share = [one / traits.chunks for one in limit] if isinstance(limit, list) else limit and limit / traits.chunks
    alone = replace(traits, chunks=1)
    split = planner.partition(profile, len(ranks), method=alone, memory_limit=share, **options)
    options.pop("pins", None)
    return costs.evaluate(profile, split.cuts, None, method=traits, **options)


def by_stage(values: Sequence[float] | None, ranks: Sequence[int]) -> Sequence[float] | None:
    """Numbers of the ranks for their stages."""
    return [values[r] for r in ranks] if values and ranks and len(values) < len(ranks) else values


def evaluate(
    profile: Profile,
    cuts: Sequence[int],
    aux_ranks: Sequence[int] | None = None,
    *,
    method: str = DEFAULT,
    **options: Any,
) -> Partition:
    """What this split costs."""
    traits = get_method(method)
    if traits.chunks > 1 and cuts:
        if (len(cuts) + 1) % traits.chunks:
            raise PlanError(
                f"{method!r} puts {traits.chunks} stages on a rank, and {len(cuts) + 1} stages are not so many"
            )
        options["speeds"] = by_stage(options.get("speeds"), traits.ranks((len(cuts) + 1) // traits.chunks))
    return costs.evaluate(profile, cuts, aux_ranks, method=traits, **options)


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
