"""Overhead of a split backward: `zb` computes input and weight gradients separately, which is not free."""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from lpcompile.core.split_backward import input_part, weight_part
from lpcompile.core.system.atomic_file import write_text
from lpcompile.passes.auxnet.measure import boundary_inputs
from lpcompile.passes.graph.untouched import untouched
from lpcompile.passes.profile.measure import drop_gradients
from lpcompile.passes.split.split import Stage

BackwardShares = tuple[float, float]  # time of the input part and of the weight part, relative to an undivided backward

FIRST_STAGE_SHARES: BackwardShares = (1.0, 0.0)  # no input gradients, so nothing to defer
DEFAULT_SHARES: BackwardShares = (0.55, 0.55)  # of other stages, if not measured
MAX_REPEATS = 5


def split_shares(
    stages: Sequence[Stage], tensors: list[torch.Tensor], repeats: int = MAX_REPEATS, cached: Path | None = None
) -> tuple[BackwardShares, ...]:
    """The shares of each stage, measured in turn with undivided backwards. Host clock only: `zb` was tried on CPUs.

    cached: a file of the profile cache, for these stages.
    """
    known = _load(cached, len(stages)) if cached is not None else ()
    if known:
        return known
    pairs = list(zip(stages, boundary_inputs(stages, tensors), strict=True))
    found = (FIRST_STAGE_SHARES, *(_shares(stage, given, min(repeats, MAX_REPEATS)) for stage, given in pairs[1:]))
    if cached is not None:
        with contextlib.suppress(OSError):  # a read-only cache is no error
            cached.parent.mkdir(parents=True, exist_ok=True)
            write_text(cached, json.dumps(found))
    return found


def _load(path: Path, count: int) -> tuple[BackwardShares, ...]:
    """Cached shares of so many stages; empty if they are absent or unreadable."""
    try:
        found = tuple((float(a), float(b)) for a, b in json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return ()
    return found if len(found) == count and all(0 <= v < 100 for pair in found for v in pair) else ()


def _shares(stage: Stage, given: Sequence[torch.Tensor], repeats: int) -> BackwardShares:
    whole, first, second = list[float](), list[float](), list[float]()
    with untouched(stage), torch.enable_grad():
        stage._lp_use_mode(True)
        for _ in range(repeats + 1):
            times = _step(stage, given)
            for found, taken in zip((whole, first, second), times, strict=True):
                found.append(taken)
    undivided = statistics.median(whole[1:]) or 1.0
    return statistics.median(first[1:]) / undivided, statistics.median(second[1:]) / undivided


def _step(stage: Stage, given: Sequence[torch.Tensor]) -> tuple[float, float, float]:
    """Seconds of an undivided backward, and of the two parts."""
    weights = [p for p in stage.parameters() if p.requires_grad]
    pairs, _ = _forward(stage, given)
    begin = time.perf_counter()
    torch.autograd.backward([end for end, _ in pairs], [seed for _, seed in pairs])
    whole = time.perf_counter() - begin
    drop_gradients(stage)
    pairs, leaves = _forward(stage, given)
    begin = time.perf_counter()
    _, groups = input_part(pairs, leaves, weights, together=False)
    middle = time.perf_counter()
    weight_part(groups)
    end = time.perf_counter()
    drop_gradients(stage)
    return whole, middle - begin, end - middle


def _forward(
    stage: Stage, given: Sequence[torch.Tensor]
) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], list[torch.Tensor]]:
    inputs = [t.detach().requires_grad_(t.is_floating_point()) for t in given]
    result = stage(*inputs)
    ends = [t for t in (result if isinstance(result, tuple) else (result,)) if t.requires_grad]
    return [(t, torch.ones_like(t)) for t in ends], [t for t in inputs if t.requires_grad]
