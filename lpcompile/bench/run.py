"""`python -m lpcompile bench`: how fast is it, against what one would use instead?

A Request is what was asked for, a Bench what has been found: plain data with a versioned JSON form. Every contender has
processes of its own, one core (or GPU) each. All are built first; then they take turns in short blocks of steps, so
that a machine that becomes slow is slow for all of them, and everything is a median over the whole run.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lpcompile import sources
from lpcompile.bench.contenders import CONTENDERS, DDP, FSDP, LIMIT, PLAIN, THREADS, TORCH, micro_choices
from lpcompile.bench.plans import Planned, plans_of
from lpcompile.bench.task import BATCHES, Task
from lpcompile.bench.team import Team
from lpcompile.compare.run import machine
from lpcompile.core.atomic_file import write_json
from lpcompile.errors import LpError, TrainingError, UsageError
from lpcompile.passes.graph.batch import batch_size
from lpcompile.runtime.launch import launch
from lpcompile.runtime.methods import METHODS
from lpcompile.sources.inputs import closest

VERSION = 1
BLOCK = 4  # steps that a contender has before the next one's turn
STEPS = 20  # at least, of every contender
TRIAL = 3  # steps by which a number of micro-batches is chosen
COPIES = 4  # of the parameters that a process has: weights, gradients, momentum, and something to spare


@dataclass(frozen=True)
class Request:
    """What is measured. `contenders` are names; `steps` are counted ones, of each."""

    model: str
    K: int = 2
    contenders: tuple[str, ...] = CONTENDERS
    batch: int = 64
    steps: int = STEPS
    optimizer: str = "sgd"
    input: str | None = None
    cost: str = "measured"
    seed: int = 0
    device: str = "cpu"
    channels_last: bool = False
    compile: bool = False
    transfer: str | None = None
    aux_dtype: str | None = None
    init: str | None = None
    timeout: float = launch.TIMEOUT

    @property
    def task(self) -> Task:
        cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
        return Task(self.model, self.K, self.batch, self.input, self.optimizer, self.seed, self.device, cores,
                    self.channels_last, self.compile, self.transfer, self.aux_dtype, self.init)  # fmt: skip

    def check(self) -> None:
        """All that can be known to be wrong before anything is started."""
        for name in self.contenders:
            if name not in CONTENDERS:
                near = closest(name, list(CONTENDERS))
                hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(CONTENDERS)}"
                raise UsageError(f"there is no contender {name!r}; {hint}")
        if self.K < 2:
            raise UsageError(f"-K {self.K}: a bench needs 2 ranks or more; plain training is always beside them")
        if self.batch < 1 or self.steps < 1:
            raise UsageError(f"--batch {self.batch} --steps {self.steps}: both are numbers of 1 or more")
        if self.optimizer not in ("sgd", "adamw"):
            raise UsageError(f"--optimizer {self.optimizer} is not one of sgd, adamw")
        if not self.timeout > 0:
            raise UsageError(f"--timeout {self.timeout:g}: give seconds, more than 0")
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            raise UsageError(f"--device {self.device} is neither cpu nor cuda")
        if launch.torchrun_rank() is not None:
            raise UsageError("bench starts its own processes, K for each contender: run it without torchrun")


@dataclass
class Row:
    """What was found of one contender. Without `step` it has not been measured, and `why` says why.

    step: [median, lower, upper quartile] of a step in ms. rho: plain training's step over this one's; for `limit`, K
    times that, since K trainings run. of_limit: rho over the measured limit's. ranks: for each one the most bytes that
    the process had (`peak`), the share of time in which it did nothing (`idle`), bytes sent a step (`sent`), and ms of
    a step by what they were for (`parts`). built, first: seconds until the first step could begin, and of that step.
    tried: ms of a step by number of micro-batches, where several were tried.
    """

    name: str
    why: str = ""
    step: list[float] = field(default_factory=list)
    steps: int = 0
    rho: float | None = None  # without plain training's step there is none
    of_limit: float | None = None
    rate: float = 0.0
    micro: int = 1
    tried: dict[str, float] = field(default_factory=dict)
    built: float = 0.0
    first: float = 0.0
    ranks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """Bytes of the rank that needs most."""
        return max((r["peak"] for r in self.ranks), default=0)


@dataclass
class Bench:
    """What has been found so far. `start`: seconds of what comes before and between steps; `scaling`: simulated."""

    request: Request
    machine: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    start: dict[str, float] = field(default_factory=dict)
    scaling: list[dict[str, Any]] = field(default_factory=list)
    version: int = VERSION

    def row(self, name: str) -> Row | None:
        """A contender that was measured."""
        return next((r for r in self.rows if r.name == name and r.step), None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> Bench:
        if not isinstance(data, dict) or data.get("version") != VERSION or "rows" not in data:
            raise UsageError(f"this is no bench of version {VERSION}; run bench again")
        request = Request(**{**data["request"], "contenders": tuple(data["request"]["contenders"])})
        return Bench(request, data["machine"], [Row(**r) for r in data["rows"]], data["start"], data["scaling"])

    def save(self, file: Path) -> None:
        write_json(file, self.to_json())


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
    planned = plans_of(request.task, needed, request.cost, request.timeout)
    found.start, found.scaling = planned.start, planned.scaling
    found.rows = [Row(name) for name in names]
    teams: dict[str, _Measured] = {}
    try:
        for number, row in enumerate(found.rows, start=1):
            label = f"[{number}/{len(names)}] {row.name}"
            with _noting(row, teams, tell):
                teams[row.name] = _Measured(_start(row, request, planned))
                _warm(row, teams[row.name].team, request, planned)
                tell(f"{label}: ready, first step after {row.built + row.first:.1f} s")
            if row.why:
                tell(f"{label}: {row.why.splitlines()[0]}")
        rounds = -(-request.steps // BLOCK)
        for number in range(rounds):
            steps = min(BLOCK, request.steps - number * BLOCK)
            tell(f"round {number + 1} of {rounds}: {steps} steps of each of {len(teams)}")
            order = list(found.rows)
            for row in order[number % len(order) :] + order[: number % len(order)]:
                if row.name in teams:
                    with _noting(row, teams, tell):
                        teams[row.name].blocks.append(teams[row.name].team.ask("block", steps))
        _measure_all(found, teams)  # a checkpoint that fails ends its contender, and not what was measured of it
        _checkpoint(found, teams, tell)
    finally:
        with _undisturbed():
            _measure_all(found, teams)  # also until Ctrl-C
            _compare(found)
            for one in teams.values():
                one.team.end()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second Ctrl-C does not keep the first one's from ending all processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _noting(suppress):
    """A failure is the row's to tell; its processes have ended by then."""

    def __init__(self, row: Row, teams: dict[str, _Measured], tell: Callable[[str], None]) -> None:
        super().__init__(LpError)
        self.row, self.teams, self.tell = row, teams, tell

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, LpError):
            self.row.why = f"{'failed' if isinstance(error, TrainingError) else 'cannot'}: {error}"
            gone = self.teams.pop(self.row.name, None)
            if gone is not None:
                gone.team.end()
        return bool(super().__exit__(kind, error, trace))


def _start(row: Row, request: Request, planned: Planned) -> Team:
    name, task = row.name, request.task
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
    _check_memory(COPIES * planned.parameter_bytes * (world if name in (LIMIT, DDP) else 1))
    return Team(name, task, plan, request.timeout)


def _check_memory(needed: int) -> None:
    """All contenders are in memory at once: tell before the system ends one of them."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        if needed > free / 2:
            raise UsageError(
                f"memory is short ({free / 1e9:.1f} GB are free) beside the contenders before it; name fewer of them "
                f"with --contenders"
            )


def _warm(row: Row, team: Team, request: Request, planned: Planned) -> None:
    """Past the first steps, and with the best number of micro-batches where that is a matter of speed only."""
    ready = team.answers()
    row.built, row.first = max(a["built"] for a in ready), max(a["first"] for a in ready)
    row.micro = ready[0]["micro"]
    plan = planned.plans.get(TORCH.get(row.name, row.name))
    choices = micro_choices(row.name, plan) if plan is not None else []
    trials: dict[int, list[float]] = {micro: [] for micro in choices}
    turns = 2 if request.steps >= STEPS else 1  # twice, so that a slow moment is not taken for a slow choice
    for micro in choices * turns:
        team.ask("use", micro)
        trials[micro] += _samples(row.name, team.ask("block", TRIAL))
    row.tried = {str(micro): statistics.median(samples) for micro, samples in trials.items()}
    if choices:
        row.micro = min(choices, key=lambda m: row.tried[str(m)])
        team.ask("use", row.micro)
    team.ask("block", BATCHES)  # stored λ begin with a first look at every batch


def _samples(name: str, answers: list[dict[str, Any]]) -> list[float]:
    """ms of each step: from when all ranks were through with one to when all are through with the next."""
    ends = [a["ends"] for a in answers]
    if name == LIMIT:  # trainings that have nothing to do with each other
        return [1e3 * (b - a) for one in ends for a, b in pairwise(one)]
    last = [max(at) for at in zip(*ends, strict=True)]
    return [1e3 * (b - a) for a, b in pairwise(last)]


def _measure_all(found: Bench, teams: dict[str, _Measured]) -> None:
    for row in found.rows:
        if row.name in teams:
            _measure(row, teams[row.name].blocks, found.request)


def _measure(row: Row, blocks: list[list[dict[str, Any]]], request: Request) -> None:
    samples = [s for answers in blocks for s in _samples(row.name, answers)]
    if not samples:
        return
    low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    row.step = [statistics.median(samples), low, high]
    row.steps = sum(len(answers[0]["ends"]) - 1 for answers in blocks)
    trained = request.batch * (request.K if row.name == LIMIT else 1)
    row.rate = 1e3 * trained / row.step[0]
    row.ranks = [_rank([answers[r] for answers in blocks], row.name) for r in range(len(blocks[0]))]


def _rank(answers: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Of one rank over all blocks. What its thread and the others of its process did with their time adds up to it."""
    count = sum(len(a["ends"]) - 1 for a in answers)
    wall = sum(a["ends"][-1] - a["ends"][0] for a in answers)
    thread = sum(a["thread"] for a in answers)
    cpu = thread if name == THREADS else sum(a["cpu"] for a in answers)
    parts: dict[str, float] = {}
    for a in answers:
        for part, seconds in a["spent"].items():
            parts[part] = parts.get(part, 0.0) + seconds
    parts["python"] = parts.get("python", 0.0) + max(0.0, thread - sum(parts.values()))
    parts["transfer"] = parts.get("transfer", 0.0) + max(0.0, cpu - thread)
    parts["wait"] = max(0.0, wall - cpu)
    return {
        "peak": max(a["peak"] for a in answers),
        "idle": parts["wait"] / wall,
        "sent": round(statistics.median(a["sent"] for a in answers)),
        "parts": {part: 1e3 * seconds / count for part, seconds in parts.items()},
    }


def _compare(found: Bench) -> None:
    plain, limit = found.row(PLAIN), found.row(LIMIT)
    if plain is None:
        return
    for row in found.rows:
        if row.step:
            row.rho = plain.step[0] / row.step[0] * (found.request.K if row.name == LIMIT else 1)
    for row in found.rows:
        if row.rho is not None and limit is not None and limit.rho is not None:
            row.of_limit = row.rho / limit.rho


def _checkpoint(found: Bench, teams: dict[str, _Measured], tell: Callable[[str], None]) -> None:
    """How long a checkpoint of one of ours takes, and from the command to the first step."""
    ours = [n for n in teams if n in METHODS]
    name = "multiplier" if "multiplier" in ours else ours[0] if ours else None
    if name is None:
        return
    row = next(row for row in found.rows if row.name == name)
    found.start |= {"build": row.built, "first step": row.first}
    with _noting(row, teams, tell):
        answers = teams[name].team.ask("save")
        found.start |= {f"checkpoint {what}": max(a[what] for a in answers) for what in ("save", "load")}


def progress() -> Callable[[str], None]:
    """Lines on stderr, with the time since it began."""
    begin = time.perf_counter()

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - begin:6.0f} s  {text}", file=sys.stderr, flush=True)

    return tell


def check_model(request: Request) -> None:
    """That there is such a model and that it takes such batches, told before processes are started."""
    source = sources.load(request.model, batch=request.batch, input_shape=request.input, device="meta",
                          channels_last=request.channels_last)  # fmt: skip
    leaves = pytree.tree_leaves((source.example_args, source.example_kwargs))
    given = batch_size([t for t in leaves if isinstance(t, torch.Tensor)])
    if given not in (None, request.batch):
        raise UsageError(
            f"{request.model} gives example inputs of {given} samples, not of {request.batch}; ask for --batch "
            f"{given}, or let example_inputs be a function of `batch`"
        )
