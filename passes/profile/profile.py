"""The cost of each unit, measured or in FLOPs, with a cache on disk for measured profiles.

>>> profile(captured, units, tensors, cost="measured")
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from lpcompile.core.cost import Profile, UnitCost
from lpcompile.core.memory_format import lies_channels_last
from lpcompile.core.system.atomic_file import write_text
from lpcompile.core.system.progress import Progress, silent
from lpcompile.errors import UsageError
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.profile.flops import flops_profile
from lpcompile.passes.profile.measure import MEASURING_SECONDS, UNITS_SHARE, Settled, measured_profile, never
from lpcompile.passes.split.units import Unit

SOURCES = ("measured", "flops")
CACHE_FORMAT = 1


def profile(
    captured: Captured,
    units: Sequence[Unit],
    tensors: list[torch.Tensor],
    *,
    cost: str = "measured",
    threads: int | None = None,
    cache: bool = True,
    progress: Progress = silent,
    part: float = 1.0,
    seconds: float = MEASURING_SECONDS,
    compiled: bool = False,
    settled: Settled = never,
) -> Profile:
    """Costs per unit for the whole mini-batch; `tensors` are the fraction `part` of it.

    seconds: of measuring a whole plan, of which the units have their share. compiled: units are made by torch.compile.
    settled: whether costs that were measured so often need no more measuring.
    Measured costs are cached by graph, units, shapes, dtypes, device, threads and torch version.
    """
    if cost not in SOURCES:
        raise UsageError(f"cost={cost!r} is not one of {', '.join(SOURCES)}")
    if cost == "flops":
        return flops_profile(captured, units)
    if any(p.device.type == "meta" for p in captured._lp.model.parameters()):
        raise UsageError("a model on the meta device has no weights to measure with; use cost='flops'")
    path = cache_directory() / f"{cache_key(captured, units, tensors, threads, part)}{'-compiled' * compiled}.json"
    found = _load(path, len(units)) if cache else None
    if found is None:
        found = measured_profile(captured, units, tensors, threads=threads, progress=progress, part=part,
                                 seconds=UNITS_SHARE * seconds, compiled=compiled, settled=settled)  # fmt: skip
        if cache:
            _store(path, found)
    return found


def cache_directory() -> Path:
    """`$LPCOMPILE_CACHE`, or lpcompile/profiles in the user's cache directory."""
    own = os.environ.get("LPCOMPILE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lpcompile" / "profiles"


@contextlib.contextmanager
def fresh_costs() -> Iterator[None]:
    """An empty profile cache inside the context: cached costs may come from a machine under another load."""
    before = os.environ.get("LPCOMPILE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LPCOMPILE_CACHE"] = folder
        try:
            yield
        finally:
            os.environ.pop("LPCOMPILE_CACHE")
            if before is not None:
                os.environ["LPCOMPILE_CACHE"] = before


def cache_key(
    captured: Captured, units: Sequence[Unit], tensors: list[torch.Tensor], threads: int | None, part: float
) -> str:
    model = captured._lp.model
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.processor()} {os.cpu_count()}"
    parts = [
        f"{CACHE_FORMAT} {part:g}{' channels last' if lies_channels_last(model) else ''}",
        torch.__version__,
        platform.node(),
        f"{device} {name} {threads or torch.get_num_threads()}",
        *(f"{tuple(t.shape)} {t.dtype}" for t in tensors),
        *(f"{n} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for n, p in model.named_parameters()),
        *(f"{n.op} {n.name} {n.target if isinstance(n.target, str) else ''} {n.args}" for n in captured.graph.nodes),
        *(f"{u.first}-{u.last}" for u in units),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:40]


def _load(path: Path, count: int) -> Profile | None:
    """A cached profile of so many units; None if it is absent, unreadable, or no profile: it is measured anew then."""
    try:
        data = json.loads(path.read_text())
        if data.pop("format") != CACHE_FORMAT:
            return None
        units = tuple(UnitCost(**u) for u in data.pop("units"))
        notes = (*data.pop("notes"), "from the profile cache")
        found = Profile(units=units, notes=notes, **data)
        return found if len(units) == count and _possible(found) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _possible(profile: Profile) -> bool:
    """Whether all costs are numbers that can be."""
    costs = [value for unit in profile.units for name, value in asdict(unit).items() if name != "name"]
    whole = [profile.whole_forward, profile.whole_backward, profile.raw_ratio]
    costs += [profile.loss, profile.part, *(value for value in whole if value is not None)]
    return all(not isinstance(v, bool) and isinstance(v, (int, float)) and 0 <= v < math.inf for v in costs)


def _store(path: Path, profile: Profile) -> None:
    """A read-only cache is no error."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps({"format": CACHE_FORMAT, **asdict(profile)}))
    except OSError:
        return
