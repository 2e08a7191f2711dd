"""The measured profile: time every unit inside real training steps on the user's device.

The model is split at every cut and run as a whole, so each unit sees the caches, threads and memory traffic of a real
step. Forward is timed between units, backward by hooks on the tensors that cross the cuts. Steps of the undivided model
are timed in turn; the units are scaled to add up to them, and the ratio is kept in the notes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import nn

from lpcompile.core.cost import Profile, UnitCost
from lpcompile.core.system.progress import Progress, silent, within
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.signature import rebuilder
from lpcompile.passes.graph.batch import batch_size
from lpcompile.passes.graph.tree import flatten
from lpcompile.passes.graph.untouched import untouched
from lpcompile.passes.profile.compiled_units import compiled_units, compiling_explained
from lpcompile.passes.profile.flops import flops_profile
from lpcompile.passes.profile.samples import SLOW_STEP, Affordable, affordable
from lpcompile.passes.split.gate import scalar
from lpcompile.passes.split.split import Stage, split, stage_io
from lpcompile.passes.split.units import Unit

MEASURING_SECONDS = 10.0  # for a whole plan, by default
UNITS_SHARE = 0.5  # of them for the units
MIN_STEPS, MAX_STEPS = 7, 30  # measured, after the warm-up
WARMUP_STEPS = 2
CHECKS_SHARE = 0.1  # of the time so far, for the question whether it is enough

Settled = Callable[[Profile, int], bool]  # whether costs that were measured in so many steps need no more of them


def never(costs: Profile, runs: int) -> bool:
    return False


class Limits(NamedTuple):
    """How many steps are measured: as many as fit in `seconds`, but at least `min_steps`."""

    seconds: float
    min_steps: int
    warmup: int
    max_whole_steps: int  # of the undivided model


def limits(found: Affordable, seconds: float = UNITS_SHARE * MEASURING_SECONDS) -> Limits:
    """Limits for undivided and divided steps in turn. Long steps vary less, so fewer are enough; fewest if they have
    only part of the samples and are scaled anyway."""
    if 2 * found.step * (MIN_STEPS + WARMUP_STEPS) <= seconds * 1e3:
        return Limits(seconds, MIN_STEPS, WARMUP_STEPS, MAX_STEPS)
    warmup = 0 if found.warm else 1
    if not found.fewer and found.step <= SLOW_STEP:
        if 2 * found.step * (3 + 1) <= seconds * 1e3:
            return Limits(seconds, 3, 1, MAX_STEPS)
        return Limits(seconds, 3, warmup, 2)
    return Limits(seconds / 3, 3, warmup, 2) if found.step <= SLOW_STEP else Limits(seconds / 3, 2, warmup, 1)


class Clock:
    """Time stamps on a device: the host's clock on CPU, events on CUDA (which `ms` synchronises)."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def stamp(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def ms(self, start: Any, end: Any) -> float:
        if not self.cuda:
            return float(end - start) * 1e3
        end.synchronize()
        return float(start.elapsed_time(end))


def measured_profile(
    captured: Captured,
    units: Sequence[Unit],
    tensors: list[torch.Tensor],
    *,
    threads: int | None = None,
    seconds: float = UNITS_SHARE * MEASURING_SECONDS,
    progress: Progress = silent,
    part: float = 1.0,
    compiled: bool = False,
    settled: Settled = never,
) -> Profile:
    """Median forward and backward ms of each unit over repeated steps, with the interquartile range as spread.

    part: `tensors` as a fraction of the mini-batch; times are scaled to all of it. Slow steps are measured with fewer
    samples. settled: ends it after fewer steps. compiled: every unit is made by torch.compile, and the undivided model,
    whose code would be of no further use, is not timed: units are what they are.
    """
    model = captured._lp.model
    base = flops_profile(captured, units)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    clock = Clock(device)
    tensors = [t.to(device) for t in tensors]
    parts = split(captured, [u.cut for u in units if u.cut is not None])
    with set_threads(threads), untouched(model, captured._lp.written), in_training(model, parts):
        rebuild = rebuilder(captured._lp.signature)

        def step(some: list[torch.Tensor]) -> float:
            progress(
                0.0,
                f"measuring a first step with {batch_size(some) or 'all'} of {batch_size(tensors) or 'all'} samples",
            )
            args, kwargs = rebuild(some)
            times = whole_step(model, args, kwargs, clock)
            return times.forward[0] + times.backward[0]

        found = affordable(captured, tensors, step)
        few = found.tensors
        lasting, calls = limits(found, seconds), list[Callable[..., Any]](parts)
        if compiled:
            progress(0.1, f"compiling {len(parts)} units")
            lasting, calls = lasting._replace(max_whole_steps=0), compiled_units(parts)
            with compiling_explained():
                _unit_step(parts, calls, few, clock)

        def enough(runs: list[UnitTimes]) -> bool:
            return len(units) > 1 and settled(replace(base, units=unit_costs(base.units, runs)), len(runs))

        wholes, runs = _repeat(model, captured, parts, calls, few, clock, lasting, enough, within(progress, 0.1, 1.0))
    part *= (batch_size(few) or 1) / (batch_size(tensors) or 1)
    raw = unit_costs(base.units, runs)
    raw_forward, raw_backward = sum(u.forward for u in raw), sum(u.backward for u in raw)
    whole_forward = statistics.median(w.forward[0] for w in wholes) if wholes else raw_forward
    whole_backward = statistics.median(w.backward[0] for w in wholes) if wholes else raw_backward
    up, down = whole_forward / part / (raw_forward or 1.0), whole_backward / part / (raw_backward or 1.0)
    costs = unit_costs(base.units, runs, up, down)
    ratio = (raw_forward + raw_backward) / ((whole_forward + whole_backward) or 1.0)
    note = f"units add up to {ratio:.3f} of the undivided step ({len(runs)} steps), scaled to it"
    if compiled:
        note = f"units are compiled by torch.compile, one by one ({len(runs)} steps)"
    if few is not tensors:
        note += f"; measured with {batch_size(few)} of {batch_size(tensors)} samples, for a step of all takes seconds"
    elif part < 1:
        note += f"; measured with micro-batches of {batch_size(few)} samples, as the method runs them"
    whole = (whole_forward / part, whole_backward / part)
    return Profile(costs, "measured", _device_name(device), *whole, ratio, part=part,
                   samples=batch_size(few), notes=(note,))  # fmt: skip


class UnitTimes(NamedTuple):
    """ms of each unit in one step; an undivided step is one unit."""

    forward: list[float]
    backward: list[float]


def unit_costs(
    units: Sequence[UnitCost], runs: Sequence[UnitTimes], up: float = 1.0, down: float = 1.0
) -> tuple[UnitCost, ...]:
    """Medians and spreads over the runs, forwards times `up` and backwards times `down`."""
    found = []
    for i, unit in enumerate(units):
        forward, backward = [r.forward[i] for r in runs], [r.backward[i] for r in runs]
        found.append(
            replace(
                unit,
                forward=statistics.median(forward) * up,
                backward=statistics.median(backward) * down,
                forward_spread=_spread(forward) * up,
                backward_spread=_spread(backward) * down,
            )
        )
    return tuple(found)


def _repeat(
    model: nn.Module,
    captured: Captured,
    parts: Sequence[Stage],
    calls: Sequence[Callable[..., Any]],
    tensors: list[torch.Tensor],
    clock: Clock,
    limits: Limits,
    enough: Callable[[list[UnitTimes]], bool],
    progress: Progress,
) -> tuple[list[UnitTimes], list[UnitTimes]]:
    """Times of undivided and divided steps in turn, within the limits, at most MAX_STEPS of each, and until they are
    enough."""
    seconds, min_steps, warmup, max_whole_steps = limits
    rebuild = rebuilder(captured._lp.signature)
    wholes, runs = list[UnitTimes](), list[UnitTimes]()
    start, checks = time.perf_counter(), 0.0
    while len(runs) < min_steps or (len(runs) < MAX_STEPS and time.perf_counter() - start < seconds):
        if len(runs) >= min_steps and checks <= CHECKS_SHARE * (time.perf_counter() - start):
            begin = time.perf_counter()
            if enough(runs):
                break
            checks += time.perf_counter() - begin
        share = max(min(len(runs) / min_steps, (time.perf_counter() - start) / seconds), len(runs) / MAX_STEPS)
        progress(min(1.0, share), f"measuring units, step {len(runs) + 1}")
        args, kwargs = rebuild(tensors)
        if len(wholes) < max_whole_steps:
            wholes.append(whole_step(model, args, kwargs, clock))
        runs.append(_unit_step(parts, calls, tensors, clock))
        if warmup:
            warmup -= 1
            wholes, runs = [], []
    return wholes, runs


def whole_step(model: nn.Module, args: Any, kwargs: Any, clock: Clock) -> UnitTimes:
    start = clock.stamp()
    out, _ = flatten(model(*args, **kwargs))
    middle = clock.stamp()
    loss = scalar(out)
    if loss is not None:
        begin = clock.stamp()
        loss.backward()  # type: ignore[no-untyped-call]
        end = clock.stamp()
    else:
        begin = end = middle
    drop_gradients(model)
    return UnitTimes([clock.ms(start, middle)], [clock.ms(begin, end)])


def _unit_step(
    parts: Sequence[Stage], calls: Sequence[Callable[..., Any]], tensors: list[torch.Tensor], clock: Clock
) -> UnitTimes:
    """One step of the split model. A unit's backward ends when the gradient of its input arrives. calls: the parts, in
    the form in which they run."""
    stamps: list[Any] = [clock.stamp()]
    arrived: dict[int, Any] = {}
    lam: tuple[torch.Tensor, ...] = ()
    outputs: list[torch.Tensor] = []
    for i, part in enumerate(parts):
        io = stage_io(part)
        result = calls[i](*lam, *(tensors[j] for j in io.inputs))
        values = result if isinstance(result, tuple) else (result,)
        lam = values[: len(io.boundary)]
        outputs += values[len(io.boundary) :]
        stamps.append(clock.stamp())
        for tensor in lam:
            if tensor.requires_grad:
                tensor.register_hook(lambda g, i=i: arrived.update({i: clock.stamp()}))  # type: ignore[no-untyped-call]
    loss = scalar(outputs)
    begin = clock.stamp()
    if loss is not None:
        loss.backward()  # type: ignore[no-untyped-call]
    end = clock.stamp()
    for part in parts:
        drop_gradients(part)
    forward = [clock.ms(a, b) for a, b in pairwise(stamps)]
    backward, at = [0.0] * len(parts), begin
    for i in range(len(parts) - 1, 0, -1):  # cut i-1 is the input of unit i
        if i - 1 in arrived:
            backward[i] = max(0.0, clock.ms(at, arrived[i - 1]))
            at = arrived[i - 1]
    backward[0] = max(0.0, clock.ms(at, end))
    return UnitTimes(forward, backward)


def drop_gradients(module: nn.Module) -> None:
    """Set all gradients to None."""
    for parameter in module.parameters():
        parameter.grad = None


@contextmanager
def set_threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def in_training(model: nn.Module, parts: Sequence[Stage]) -> Iterator[None]:
    if not model.training:
        model.train()  # undone by `untouched`
    for part in parts:
        part._lp_use_mode(True)
    drop_gradients(model)
    with torch.enable_grad():
        yield


def _spread(values: list[float]) -> float:
    """Interquartile range."""
    low, _, high = statistics.quantiles(values, n=4)
    return high - low


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type
