"""`python -m lpcompile bench`: the step time of every way to train, measured side by side.

Every contender has processes of its own, one core (or GPU) each. All are built first; then they take turns in short
blocks of steps, so that a machine that becomes slow is slow for all of them. Every figure is a median over the run.
"""

from __future__ import annotations

import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpcompile.bench.arithmetic import add_speedups, measure, step_times
from lpcompile.bench.contenders import DDP, FSDP, LIMIT, PLAIN, THREADS, TORCH, micro_choices
from lpcompile.bench.plans import Planned, plans_of
from lpcompile.bench.request import DEFAULT_STEPS, BenchRequest
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.bench.team import Team
from lpcompile.bench.work import DISTINCT_BATCHES
from lpcompile.errors import LpError, UsageError
from lpcompile.runtime.methods import DEFAULT, METHODS
from lpcompile.training.measures import machine, reason

STEPS_PER_BLOCK = 4  # steps of a contender before the next one's turn
STEPS_PER_TRIAL = 3  # steps by which a number of micro-batches is chosen
COPIES_OF_PARAMETERS = 4  # that a process holds: weights, gradients, momentum, and something to spare


@dataclass
class _Measured:
    """Blocks of one contender."""

    team: Team
    blocks: list[list[dict[str, Any]]] = field(default_factory=list)


def bench(found: Bench, tell: Callable[[str], None] = lambda _: None) -> None:
    """Fill in a bench. A contender that fails does not stop the others."""
    request = found.request
    request.check()
    found.machine = machine()
    names = tuple(dict.fromkeys((PLAIN, *request.contenders)))
    needed = tuple(dict.fromkeys(TORCH.get(n, n) for n in names if n in TORCH or n in METHODS))
    tell(f"planning {request.model} for {', '.join(needed)}" if needed else f"loading {request.model}")
    planned = plans_of(request.work, needed, request.cost, request.timeout)
    found.start, found.scaling = planned.start, planned.scaling
    found.rows = [BenchRow(name) for name in names]
    teams: dict[str, _Measured] = {}
    try:
        for number, row in enumerate(found.rows, start=1):
            label = f"[{number}/{len(names)}] {row.name}"
            with _noting(row, teams):
                teams[row.name] = _Measured(_start(row, request, planned))
                _warm(row, teams[row.name].team, request, planned)
                tell(f"{label}: ready, first step after {row.built + row.first:.1f} s")
            if row.why:
                tell(f"{label}: {row.why.splitlines()[0]}")
        rounds = -(-request.steps // STEPS_PER_BLOCK)
        for number in range(rounds):
            steps = min(STEPS_PER_BLOCK, request.steps - number * STEPS_PER_BLOCK)
            tell(f"round {number + 1} of {rounds}: {steps} steps of each of {len(teams)}")
            order = list(found.rows)
            for row in order[number % len(order) :] + order[: number % len(order)]:
                if row.name in teams:
                    with _noting(row, teams):
                        teams[row.name].blocks.append(teams[row.name].team.ask("block", steps))
        _measure_all(found, teams)  # a failing checkpoint ends its contender, but its figures stay
        _checkpoint(found, teams)
    finally:
        with _undisturbed():
            _measure_all(found, teams)  # also until Ctrl-C
            add_speedups(found)
            for one in teams.values():
                one.team.end()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C while the first one ends all processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _noting(suppress):
    """Note a failure in its row and end the contender's processes."""

    def __init__(self, row: BenchRow, teams: dict[str, _Measured]) -> None:
        super().__init__(LpError)
        self.row, self.teams = row, teams

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, LpError):
            self.row.why = reason(error)
            gone = self.teams.pop(self.row.name, None)
            if gone is not None:
                gone.team.end()
        return bool(super().__exit__(kind, error, trace))


def _start(row: BenchRow, request: BenchRequest, planned: Planned) -> Team:
    name, spec = row.name, request.work
    method = TORCH.get(name, name)
    plan = planned.plans.get(method)
    if method in planned.refused:
        raise UsageError(planned.refused[method])
    if name in (DDP, FSDP) and request.batch % request.K:
        raise UsageError(f"a batch of {request.batch} has no {request.K} equal parts")
    if name == FSDP and request.channels_last:
        raise UsageError("FSDP shards contiguous weights only")
    if name == "torch-zb" and request.compile:
        raise UsageError("torch's zero-bubble schedule takes no stages that torch.compile made")
    world = 1 if name in (PLAIN, THREADS) else request.K
    _check_memory(COPIES_OF_PARAMETERS * planned.parameter_bytes * (world if name in (LIMIT, DDP) else 1))
    return Team(name, spec, plan, request.timeout)


def _check_memory(needed: int) -> None:
    """All contenders are in memory at once: refuse before the system kills one of them."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        if needed > free / 2:
            raise UsageError(
                f"memory is short ({free / 1e9:.1f} GB are free) beside the contenders before it; name fewer of them "
                f"with --contenders"
            )


def _warm(row: BenchRow, team: Team, request: BenchRequest, planned: Planned) -> None:
    """Warm up, and choose the fastest number of micro-batches if results do not depend on it."""
    ready = team.answers()
    row.built, row.first = max(a["built"] for a in ready), max(a["first"] for a in ready)
    row.micro = ready[0]["micro"]
    plan = planned.plans.get(TORCH.get(row.name, row.name))
    choices = micro_choices(row.name, plan) if plan is not None else []
    trials: dict[int, list[float]] = {micro: [] for micro in choices}
    turns = 2 if request.steps >= DEFAULT_STEPS else 1  # twice, so that a slow moment is not taken for a slow choice
    for micro in choices * turns:
        team.ask("use", micro)
        trials[micro] += step_times(row.name, team.ask("block", STEPS_PER_TRIAL))
    row.tried = {str(micro): statistics.median(samples) for micro, samples in trials.items()}
    if choices:
        row.micro = min(choices, key=lambda m: row.tried[str(m)])
        team.ask("use", row.micro)
    team.ask("block", DISTINCT_BATCHES)  # stores of λ are filled by the first pass over all batches


def _measure_all(found: Bench, teams: dict[str, _Measured]) -> None:
    for row in found.rows:
        if row.name in teams:
            measure(row, teams[row.name].blocks, found.request)


def _checkpoint(found: Bench, teams: dict[str, _Measured]) -> None:
    """Measure a checkpoint of one of our methods, and the time from the command to its first step."""
    ours = [n for n in teams if n in METHODS]
    name = DEFAULT if DEFAULT in ours else ours[0] if ours else None
    if name is None:
        return
    row = next(row for row in found.rows if row.name == name)
    found.start |= {"build": row.built, "first step": row.first}
    with _noting(row, teams):
        answers = teams[name].team.ask("save")
        found.start |= {f"checkpoint {what}": max(a[what] for a in answers) for what in ("save", "load")}


def progress() -> Callable[[str], None]:
    """Lines on stderr, with the time since it began."""
    begin = time.perf_counter()

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - begin:6.0f} s  {text}", file=sys.stderr, flush=True)

    return tell
