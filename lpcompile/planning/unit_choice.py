"""The units for planning: with the narrowest boundaries that balance, wider ones only if they shorten the step."""

from __future__ import annotations

from lpcompile.errors import PlanError
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.profile.flops import flops_profile
from lpcompile.passes.split.cuts import cuts, kind_of
from lpcompile.passes.split.units import Unit, units
from lpcompile.planning.balance import caches
from lpcompile.planning.options import Options

WIDTHS = (1, 2, 3, 8)  # tensors per boundary that are tried, in this order
BALANCED = 1.25  # largest stage over the mean at which no wider boundary is tried
WIDER_STEP = 0.95  # a wider boundary must shorten the step at least to this share


def choose_units(captured: Captured, options: Options) -> tuple[list[Unit], int]:
    """The units and the number of tensors that their boundaries may carry."""
    widths = WIDTHS if options.max_width == "auto" else (int(options.max_width),)
    K = options.K if isinstance(options.K, int) else 2
    K = len(options.traits.ranks(K)) or K
    best: tuple[float, list[Unit], int] | None = None
    most = 0
    for width in widths:
        positions = cuts(captured, max_width=width, tied=options.tied)
        found = units(captured, positions)
        most = max(most, len(found))
        if len(found) < K:
            continue
        costs = [u.forward + u.backward for u in flops_profile(captured, found).units]
        step = smallest_maximum(costs, K)
        if best is None or step < WIDER_STEP * best[0]:
            best = (step, found, width)
        if step * K <= BALANCED * sum(costs):
            break
    if best is None:
        raise too_many_stages(captured, K, most, options)
    return best[1], best[2]


def smallest_maximum(costs: list[float], K: int) -> float:
    """The smallest possible maximum over K contiguous parts: an estimate before the planner proper."""
    low, high = max(max(costs), sum(costs) / K), sum(costs)
    for _ in range(40):
        middle = (low + high) / 2
        parts, filled = 1, 0.0
        for c in costs:
            if filled + c > middle:
                parts, filled = parts + 1, 0.0
            filled += c
        low, high = (low, middle) if parts <= K else (middle, high)
    return high


def too_many_stages(captured: Captured, K: int, most: int, options: Options) -> PlanError:
    """The error with the commonest reasons why positions are no cuts."""
    positions = cuts(captured, max_width=WIDTHS[-1], tied=options.tied)
    reasons: dict[str, int] = {}
    for cut in positions:
        if not cut.legal:
            key = kind_of(cut.reason)
            reasons[key] = reasons.get(key, 0) + 1
    common = sorted(reasons, key=lambda r: -reasons[r])[:3]
    why = "; ".join(f"{reasons[r]} positions: {r}" for r in common) or "the model has no more steps"
    whole = captured._lp.kept_whole
    hint = f" (kept whole: {', '.join(whole[:4])})" if whole else ""
    why += f"; {caches(captured)}" if whole and caches(captured) else ""
    chunks = options.traits.chunks
    many = (
        f"K = {K} stages" if chunks == 1 else f"K = {K // chunks} ranks with {chunks} stages each ({options.method!r})"
    )
    return PlanError(
        f"{many} are too many: the model can be cut into at most {most}{hint}; ask for K <= {most // chunks}. "
        f"Why not more: {why}",
        most=most // chunks,
    )
