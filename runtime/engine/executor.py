"""The interpreter of schedules: one handler for each instruction, one list for each rank.

>>> for _ in run([worker], transport, program, base, low, high): ...    # one rank of several processes
>>> take_turns([run([w], ...) for w in workers])                        # all ranks in one process
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from lpcompile.core.schedule import STEPWISE, Instruction, Ref, Schedule, moment
from lpcompile.errors import ScheduleError
from lpcompile.runtime.comm.transport import Key, Transport
from lpcompile.runtime.engine.handlers import HANDLERS, Handler
from lpcompile.runtime.engine.worker import Worker
from lpcompile.runtime.launch import board

NO_RANGE = contextlib.nullcontext()


@dataclass(frozen=True)
class Op:
    """An instruction ready to run: its handler, and the tensors that it is the last to use."""

    item: Instruction
    name: str
    handler: Handler | None  # None for messages
    frees: tuple[Ref, ...]


def prepare(schedule: Schedule, rank: int) -> tuple[Op, ...]:
    """Find the handlers, and the last reader of every tensor."""
    M, items = schedule.micro, schedule.ranks[rank]
    last: dict[Ref, tuple[tuple[int, int], Ref]] = {}
    for at, item in enumerate(items):
        for ref in (*item.reads, *item.writes) if item.op not in STEPWISE and item.op != "recv" else ():
            key, when = Ref(ref.kind, ref.boundary, ref.slot % M), moment(item, at, M)
            if key not in last or when >= last[key][0]:
                last[key] = (when, ref)
    frees: dict[int, list[Ref]] = {}
    for (_, at), ref in last.values():
        frees.setdefault(at, []).append(ref)
    return tuple(
        Op(
            item,
            str(item),
            None if item.op in ("send", "recv", "wait") else HANDLERS[item.op],
            tuple(frees.get(at, ())),
        )
        for at, item in enumerate(items)
    )


def run(
    team: Sequence[Worker], transport: Transport, program: Sequence[Op], depth: int, base: int, low: int, high: int
) -> Iterator[None]:
    """Run one step of one rank; yields when it has to wait for another one.

    team: the workers of the rank's stages. They share their tensors; the first one has the messages and the trace.
    base: number of the step's first micro-batch since training began. Only micro-batches in [low, high) exist.
    """
    worker = team[0]
    values, rank, own = worker.values, worker.rank, board.own
    profiled = torch._C._autograd._profiler_enabled()
    for op in program:
        slot = base + op.item.slot
        if not low <= slot < high and op.item.op not in STEPWISE:
            continue
        worker.now = op.name
        if own is not None:
            own.note(worker.step, op.name)
        begin = worker.clock() if worker.trace is not None else 0.0
        try:
            with torch.profiler.record_function(f"rank {rank}: {op.name}") if profiled else NO_RANGE:
                waiting = _do(team, transport, op, slot, depth)
            if waiting is not None:
                yield from waiting
        except Exception as error:
            if hasattr(error, "add_note"):
                error.add_note(f"in step {worker.step} on rank {rank}, instruction {op.name!r}")
            raise
        if worker.trace is not None:
            worker.trace.append((op.name, rank, worker.step, begin, worker.clock()))
        worker.progress += 1
        for ref in op.frees:
            values.pop((ref.kind, ref.boundary, base + ref.slot), None)
    if own is not None:
        own.note(worker.step, "(between steps)")


def _do(team: Sequence[Worker], transport: Transport, op: Op, slot: int, depth: int) -> Iterator[None] | None:
    """Run one instruction. An iterator that it returns yields while the rank has to wait."""
    item, worker = op.item, team[0]
    if op.handler is not None and len(team) > 1 and item.op in STEPWISE:
        return _together([op.handler(w, item, slot) for w in team])
    if op.handler is not None:
        return op.handler(next((w for w in team if w.rank == item.stage), worker), item, slot)
    key = (item.ref.kind, item.ref.boundary, slot)
    if item.op == "wait":
        return _wait(worker, transport, key)
    if item.op == "recv":
        transport.post(worker.rank, item.peer, key, worker.shapes(key), depth)
    else:
        message = worker.message(key, worker.values[key])
        worker.sent += sum(t.nbytes for t in message)
        worker.waited += transport.send(worker.rank, item.peer, key, message)
    return None


def _together(waiting: Iterable[Iterator[None] | None]) -> Iterator[None]:
    """An instruction of all stages of a rank: each goes on until it has to wait."""
    left = [one for one in waiting if one is not None]
    while left:
        left = [one for one in left if next(one, True) is not True]
        if left:
            yield


def _wait(worker: Worker, transport: Transport, key: Key) -> Iterator[None]:
    begin = time.perf_counter()
    found = transport.arrived(worker.rank, key)
    while found is None:
        yield
        found = transport.arrived(worker.rank, key)
    worker.waited += time.perf_counter() - begin
    worker.values[key] = worker.unpacked(key, found)


def take_turns(teams: Sequence[Sequence[Worker]], runs: Sequence[Iterator[None]]) -> None:
    """Run all ranks in one process: each until it has to wait. A rank draws from its first stage's random stream."""
    left = list(zip(teams, runs, strict=True))
    while left:
        moved = False
        for pair in list(left):
            team, steps = pair
            before = sum(w.progress for w in team)
            with team[0].own_random():
                over = next(steps, True) is True
            if over:
                left.remove(pair)
            moved |= over or sum(w.progress for w in team) != before
        if not moved:
            ranks = ", ".join(str(team[0].rank) for team, _ in left)
            raise ScheduleError(f"ranks {ranks} wait for each other; the schedule was not verified")
