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

from lpcompile.bench.contenders.contender import Contender
from lpcompile.bench.contenders.ways import Ours, make
from lpcompile.bench.contenders.work import WorkSpec
from lpcompile.core.plan import Plan
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.engine import memory
from lpcompile.runtime.launch import board


def serve(name: str, spec: WorkSpec, plan: dict[str, Any] | None, pipes: list[Any]) -> None:
    """The life of one rank: build, then obey commands until `end`."""
    logging.basicConfig(level=logging.ERROR)
    warnings.simplefilter("ignore")
    pipe = pipes[int(os.environ["RANK"])]
    begin = time.perf_counter()
    contender = make(name, spec, Plan.from_json(plan) if plan is not None else None)
    built = time.perf_counter() - begin
    with _may_compile(spec):
        contender.step()
    first = time.perf_counter() - begin - built
    pipe.send({"built": built, "first": first, "micro": contender.micro})
    contender.finish()
    before = _resident() - contender.held()  # Python, torch and the compiler
    while True:
        with board.away(0, "waiting for its turn", board.RESTS):
            command, value = pipe.recv()
        if command == "end":
            return
        if command == "use":
            contender.use(value)
            with _may_compile(spec):
                contender.step()
            pipe.send({})
        elif command == "block":
            pipe.send(block(contender, value[0], value[1], before, spec.device))
        elif command == "train":
            pipe.send({"curve": train_to(contender, value[0], value[1], spec.device)})
        elif command == "save":
            assert isinstance(contender, Ours)
            pipe.send(_save(contender))


def _may_compile(spec: WorkSpec) -> contextlib.AbstractContextManager[None]:
    """Around a step in which torch.compile may make code: minutes, in which this process itself does nothing."""
    return board.away(0, "compiling", board.RESTS) if spec.compile else contextlib.nullcontext()


def block(contender: Contender, steps: int, warm_up: int, before: int, device: str) -> dict[str, Any]:
    """Steps after some that are not counted. `ends`: the start and the end of each, on a clock that all ranks share."""
    memory.reset_peak()
    _meet()
    for _ in range(warm_up):
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


def train_to(contender: Contender, target: float, epochs: int, device: str) -> list[list[float]]:
    """Train until the model has this accuracy, looked at after every pass over the data: steps, seconds and accuracy at
    each. Seconds are of training, with the end of what is in flight, and not of looking."""
    curve: list[list[float]] = []
    steps, seconds = 0, 0.0
    for _ in range(epochs):
        _meet()
        begin = time.perf_counter()
        for _ in range(len(contender.work.train)):
            contender.step()
        contender.finish()
        _synchronize(device)
        _meet()
        seconds += time.perf_counter() - begin
        steps += len(contender.work.train)
        with board.away(0, "looking at the accuracy", board.RESTS):
            found = contender.accuracy()
        curve.append([steps, seconds, found])
        if found >= target:
            break
    return curve


def _save(contender: Ours) -> dict[str, float]:
    """Seconds to save and to load a checkpoint."""
    folder = exchange.from_first(tempfile.mkdtemp() if dist.get_rank() == 0 else "")
    contender.finish()
    begin = time.perf_counter()
    contender.trainer.save(folder)
    saved = time.perf_counter()
    contender.trainer.load(folder)
    loaded = time.perf_counter()
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder)
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
