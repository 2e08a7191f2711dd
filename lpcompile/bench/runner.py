"""The contenders of a bench while it runs: their processes, started once, take turns in short blocks of steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lpcompile.bench.arithmetic import measure, step_times
from lpcompile.bench.contenders.ways import DDP, FSDP, LIMIT, PLAIN, THREADS, base, micro_choices, planned_as
from lpcompile.bench.contenders.work import DISTINCT_BATCHES
from lpcompile.bench.plans import Planned
from lpcompile.bench.request import DEFAULT_STEPS, BenchRequest
from lpcompile.bench.results import BenchRow
from lpcompile.bench.team import Team
from lpcompile.core.plan import Plan
from lpcompile.errors import LpError, UsageError
from lpcompile.runtime.launch.hosts import Hosts, bits_per_s
from lpcompile.training.measures import reason

WARM_UP_STEPS = 1  # of a block, not counted: memory is allocated again, ranks get in step
STEPS_PER_BLOCK = 4  # steps of a contender before the next one's turn
STEPS_PER_TRIAL = 3  # steps by which a number of micro-batches is chosen
COPIES_OF_PARAMETERS = 4  # copies in each process: weights, gradients, momentum, and a reserve


@dataclass
class Runner:
    """The processes of all contenders, and the blocks of steps that each has done since `forget`."""

    request: BenchRequest
    planned: Planned
    tell: Callable[[str], None]
    hosts: Hosts | None = None
    teams: dict[str, Team] = field(default_factory=dict)
    blocks: dict[str, list[list[dict[str, Any]]]] = field(default_factory=dict)
    plan_of: dict[str, Plan | None] = field(default_factory=dict)  # that a contender's processes run

    def start(self, rows: list[BenchRow]) -> None:
        """Start and warm up contenders. One that fails does not stop the others."""
        for number, row in enumerate(rows, start=1):
            label = f"[{number}/{len(rows)}] {row.name}"
            with self.noting(row):
                self._start(row, self.planned.plans.get(planned_as(row.name)))
                self.tell(f"{label}: ready, first step after {row.built + row.first:.1f} s")
            if row.why:
                self.tell(f"{label}: {row.why.splitlines()[0]}")

    def _start(self, row: BenchRow, plan: Plan | None) -> None:
        refuse(row, self.request, self.planned)
        self.plan_of[row.name] = plan
        timeout = patience(self.request, self.planned.parameter_bytes)
        self.teams[row.name] = Team(row.name, self.request.work, plan, timeout, self.hosts)
        _warm(row, self.teams[row.name], self.request, plan)

    def restart(self, row: BenchRow, plan: Plan) -> None:
        """The same contender on other stages."""
        self.teams.pop(row.name).end()
        self.tell(f"{row.name}: started again, its stages are cut elsewhere")
        with self.noting(row):
            self._start(row, plan)

    def take_turns(self, rows: list[BenchRow], steps: dict[str, int], warm_up: int = WARM_UP_STEPS) -> None:
        """So many steps of each, in blocks. A contender of few steps has its blocks in the first rounds."""
        left = {row.name: steps[row.name] for row in rows if row.name in self.teams}
        rounds = -(-max(left.values(), default=0) // STEPS_PER_BLOCK)
        for number in range(rounds):
            count = sum(n > 0 for n in left.values())
            self.tell(f"round {number + 1} of {rounds}: {STEPS_PER_BLOCK} steps of each of {count}")
            for row in rows[number % len(rows) :] + rows[: number % len(rows)]:
                now = min(STEPS_PER_BLOCK, left.get(row.name, 0))
                if now and row.name in self.teams:
                    with self.noting(row):
                        answers = self.teams[row.name].ask("block", (now, warm_up))
                        self.blocks.setdefault(row.name, []).append(answers)
                    left[row.name] -= now

    def measure(self, rows: list[BenchRow]) -> None:
        for row in rows:
            if row.name in self.blocks:
                measure(row, self.blocks[row.name], self.request)

    def forget(self) -> None:
        """Begin another measurement with the same processes."""
        self.blocks.clear()

    def noting(self, row: BenchRow) -> _noting:
        return _noting(row, self.teams)

    def end(self) -> None:
        while self.teams:
            self.teams.popitem()[1].end()


class _noting(suppress):
    """Note a failure in its row and end the contender's processes."""

    def __init__(self, row: BenchRow, teams: dict[str, Team]) -> None:
        super().__init__(LpError)
        self.row, self.teams = row, teams

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, LpError):
            self.row.why = reason(error)
            gone = self.teams.pop(self.row.name, None)
            if gone is not None:
                gone.end()
        return bool(super().__exit__(kind, error, trace))


def refuse(row: BenchRow, request: BenchRequest, planned: Planned) -> None:
    """Contenders that cannot run, before their processes start."""
    name, method = row.name, planned_as(row.name)
    if method in planned.refused:
        raise UsageError(planned.refused[method])
    if base(name) in (DDP, FSDP) and request.batch % request.K:
        raise UsageError(f"a batch of {request.batch} has no {request.K} equal parts")
    if name == FSDP and request.channels_last:
        raise UsageError("FSDP shards contiguous weights only")
    if name == "torch-zb" and request.compile:
        raise UsageError("torch's zero-bubble schedule takes no stages that torch.compile made")
    world = 1 if name in (PLAIN, THREADS) else request.K
    check_memory(COPIES_OF_PARAMETERS * planned.parameter_bytes * (world if base(name) in (LIMIT, DDP) else 1))


def patience(request: BenchRequest, parameter_bytes: int) -> float:
    """Seconds after which a rank is taken for dead: over a slow link all of them may wait for one message as long as a
    step of FSDP takes, which sends the parameters three times."""
    step = 3 * 8 * parameter_bytes / min(map(bits_per_s, request.rate)) if request.rate else 0.0
    return max(request.timeout, 2 * step)


def check_memory(needed: int) -> None:
    """All contenders are in memory at once: refuse before the system kills one of them."""
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
        if needed > free / 2:
            raise UsageError(
                f"memory is short ({free / 1e9:.1f} GB are free) beside the contenders before it; name fewer of them "
                f"with --contenders"
            )


def _warm(row: BenchRow, team: Team, request: BenchRequest, plan: Plan | None) -> None:
    """Warm up, and choose the fastest number of micro-batches if results do not depend on it."""
    ready = team.answers()
    row.built, row.first = max(a["built"] for a in ready), max(a["first"] for a in ready)
    row.micro = ready[0]["micro"]
    choices = micro_choices(row.name, plan) if plan is not None else []
    trials: dict[int, list[float]] = {micro: [] for micro in choices}
    turns = 2 if request.steps >= DEFAULT_STEPS else 1  # twice, so that a slow moment is not taken for a slow choice
    for micro in choices * turns:
        team.ask("use", micro)
        trials[micro] += step_times(row.name, team.ask("block", (STEPS_PER_TRIAL, WARM_UP_STEPS)))
    row.tried = {str(micro): statistics.median(samples) for micro, samples in trials.items()}
    if choices:
        row.micro = min(choices, key=lambda m: row.tried[str(m)])
        team.ask("use", row.micro)
    team.ask("block", (DISTINCT_BATCHES, WARM_UP_STEPS))  # stores of λ are filled by the first pass over all batches
