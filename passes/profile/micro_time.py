"""How long a micro-batch takes, by its number of samples: what the choice of micro-batches rests on."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence

import torch

from lpcompile.core.system.atomic_file import write_text
from lpcompile.core.system.progress import Progress, silent
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.signature import rebuilder
from lpcompile.passes.graph.batch import resized
from lpcompile.passes.graph.untouched import untouched
from lpcompile.passes.profile.measure import MEASURING_SECONDS, Clock, in_training, set_threads, whole_step
from lpcompile.passes.profile.profile import cache_directory, cache_key
from lpcompile.passes.split.units import Unit

ROUNDS = 3  # of all sizes in turn, after one that warms up
SHARE = 0.25  # of the time for measuring a plan


def micro_times(
    captured: Captured,
    units: Sequence[Unit],
    tensors: list[torch.Tensor],
    sizes: Sequence[int],
    *,
    threads: int | None = None,
    cache: bool = True,
    seconds: float = MEASURING_SECONDS,
    progress: Progress = silent,
) -> dict[int, float]:
    """ms of an undivided training step by number of samples, sizes in turn; from the cache where it was measured.

    seconds: of measuring a whole plan. Where its share is spent, the first round, which warms up, is all there is.
    """
    path = cache_directory() / f"{cache_key(captured, units, tensors, threads, 1.0)}-micro.json"
    if cache and (known := _load(path, sizes)):
        return known
    model, rebuild = captured._lp.model, rebuilder(captured._lp.signature)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    clock = Clock(device)
    found: dict[int, list[float]] = {size: [] for size in sizes}
    cold: dict[int, float] = {}
    with set_threads(threads), untouched(model, captured._lp.written), in_training(model, ()):
        spent = 0.0
        for turn in range(1 + ROUNDS):
            for size in sizes:
                progress(turn / (1 + ROUNDS), f"measuring a step with {size} samples, round {turn + 1}")
                args, kwargs = rebuild([t.to(device) for t in resized(tensors, size)])
                step = whole_step(model, args, kwargs, clock)
                taken = step.forward[0] + step.backward[0]
                spent += taken
                if turn:
                    found[size].append(taken)
                else:
                    cold[size] = taken
            if spent > SHARE * 1e3 * seconds:
                break
    times = {size: statistics.median(values or [cold[size]]) for size, values in found.items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(times))
    except OSError:
        pass  # a read-only cache is no error
    return times


def _load(path: object, sizes: Sequence[int]) -> dict[int, float]:
    """Cached times of all sizes; empty if they are absent or unreadable."""
    try:
        data = {int(size): float(ms) for size, ms in json.loads(path.read_text()).items()}  # type: ignore[attr-defined]
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return {}
    return {size: data[size] for size in sizes} if all(0 < data.get(size, 0.0) < math.inf for size in sizes) else {}
