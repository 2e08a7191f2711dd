"""A process of a bench: it builds its part of one contender, and trains when it is its turn.

Between turns it is idle and returns free memory to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import shutil
import tempfile
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist

from lpcompile.bench.contender import Contender
from lpcompile.bench.contenders import Ours, make
from lpcompile.bench.work import WorkSpec
from lpcompile.core.plan import Plan
from lpcompile.runtime.engine import memory
from lpcompile.runtime.launch import board

WARM_UP_STEPS = 1  # of a block, not counted: memory is allocated again, ranks get in step


def serve(name: str, spec: WorkSpec, plan: dict[str, Any] | None, pipes: list[Any]) -> None:
    """The life of one rank: build, then obey commands until `end`."""
    logging.basicConfig(level=logging.ERROR)
    warnings.simplefilter("ignore")
    pipe = pipes[int(os.environ["RANK"])]
    begin = time.perf_counter()
    contender = make(name, spec, Plan.from_json(plan) if plan is not None else None)
    built = time.perf_counter() - begin
    contender.step()
    first = time.perf_counter() - begin - built
    pipe.send({"built": built, "first": first, "micro": contender.micro})
    contender.finish()
    before = _resident() - contender.held()  # Python, torch and the compiler
    while True:
        with board.away(0, "waiting for its turn"):
            command, value = pipe.recv()
        if command == "end":
            return
        if command == "use":
            contender.use(value)
            contender.step()
            pipe.send({})
        elif command == "block":
            pipe.send(block(contender, value, before, spec.device))
        elif command == "save":
            assert isinstance(contender, Ours)
            pipe.send(_save(contender))


def block(contender: Contender, steps: int, before: int, device: str) -> dict[str, Any]:
    """A block of steps. `ends` has the start and the end of each step, on a clock that all processes share."""
    memory.reset_peak()
    _meet()
    for _ in range(WARM_UP_STEPS):
        contender.step()
    contender.spent.clear()
    _synchronize(device)
    ends, sent = [time.perf_counter()], 0
    cpu, thread = time.process_time(), time.thread_time()
    for _ in range(steps):
        contender.step()
        _synchronize(device)
        ends.append(time.perf_counter())
        sent += contender.sent
    cpu, thread = time.process_time() - cpu, time.thread_time() - thread
    peak = memory.process() - before
    if device.startswith("cuda"):
        peak = torch.cuda.max_memory_allocated()
    _meet()
    _trim()
    return {"ends": ends, "cpu": cpu, "thread": thread, "spent": dict(contender.spent), "sent": sent / steps,
            "peak": peak}  # fmt: skip


def _save(contender: Ours) -> dict[str, float]:
    """Seconds to save and to load a checkpoint."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(folder, 0)
    contender.finish()
    begin = time.perf_counter()
    contender.trainer.save(folder[0])
    saved = time.perf_counter()
    contender.trainer.load(folder[0])
    loaded = time.perf_counter()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0])
    return {"save": saved - begin, "load": loaded - saved}


def _meet() -> None:
    if dist.is_initialized():
        dist.barrier()


def _synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _resident() -> int:
    _trim()
    memory.reset_peak()
    return memory.process()


def _trim() -> None:
    """Give freed memory back to the system."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
