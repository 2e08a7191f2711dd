"""Replay buffers between processes: a thread of the receiver takes every offer from the wire on arrival.

So an offer ends soon, however slow the receiver's stage is. Each pair of neighbours has its own gloo group for offers
alone; GPUs send them through host memory, where the buffer is.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from lpcompile.core.stage_io import io_of
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import plain
from lpcompile.runtime.comm.buffer import Buffer, BufferEntry, Buffers, LocalBuffers, check
from lpcompile.runtime.comm.mesh import Mesh
from lpcompile.runtime.launch.launch import GRACE, PATIENCE

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

END_OF_OFFERS = -1  # instead of a header's length: all offers before this flush have been sent
MAX_OFFERS_IN_FLIGHT = 8  # they wait for the receiver's thread, never for its stage


class WireBuffers:
    """One rank per process; see `Buffers`. The groups' timeout is long, for ranks that are far ahead of the others."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.rank = mesh, mesh.stage
        self.buffer = Buffer()
        self.thread: threading.Thread | None = None
        self.under_way: list[tuple[list[Any], list[Tensor]]] = []
        self.used, self.failed = False, False  # used since the last drain
        self.groups: dict[int, Any] = {}  # by boundary
        atexit.register(self._close)
        patience = datetime.timedelta(seconds=PATIENCE)
        for first in range(0, mesh.K * mesh.replicas, mesh.K):
            for k in range(1, mesh.K):
                group: Any = dist.new_group([first + k - 1, first + k], backend="gloo", timeout=patience)
                if first == mesh.first and self.rank in (k - 1, k):
                    self.groups[k] = group

    def use(self, size: int, policy: str) -> None:
        self.buffer.size, self.buffer.policy = size, policy

    def offer(self, k: int, entry: BufferEntry) -> tuple[int, float]:
        self.used = True
        structure, tensors = _apart(entry)
        header = torch.frombuffer(bytearray(json.dumps(structure).encode()), dtype=torch.uint8)
        tensors = [torch.tensor([len(header)]), header, *(t for t in tensors if t.numel())]
        return sum(t.nbytes for t in tensors), self._send(k, tensors)

    def _send(self, k: int, tensors: list[Tensor]) -> float:
        begin = time.perf_counter()
        while len(self.under_way) >= MAX_OFFERS_IN_FLIGHT:
            self._end()
        held = time.perf_counter() - begin
        works = [dist.isend(t, self.mesh.first + k, group=self.groups[k]) for t in tensors]
        self.under_way.append((works, tensors))
        return held

    def _end(self) -> None:
        for work in self.under_way.pop(0)[0]:
            work.wait()

    def draw(self, k: int) -> tuple[BufferEntry, int] | None:
        self.used = True
        if self.thread is None:
            self.thread = threading.Thread(target=self._listen, args=(k,), daemon=True, name=f"replay {k}")
            self.thread.start()
        return self.buffer.draw(wait=True)

    def skipped(self, k: int) -> int:
        return self.buffer.skipped

    def nbytes(self, k: int) -> int:
        return self.buffer.nbytes()

    def fail(self) -> None:
        self.failed = True

    def _listen(self, k: int) -> None:
        """The receiving thread: puts offers into the buffer until their end, or until the connection breaks."""

        def receive(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            tensor = torch.empty(shape, dtype=dtype)
            if tensor.numel():
                dist.recv(tensor, self.mesh.first + k - 1, group=self.groups[k])
            return tensor

        try:
            while (length := int(receive((1,), torch.int64))) != END_OF_OFFERS:
                structure = json.loads(receive((length,), torch.uint8).numpy().tobytes())
                self.buffer.put(_together(structure, receive))
        except BaseException as error:
            self.buffer.fail(error)

    def drain(self) -> None:
        """The rank below announces its end; the rank above answers after the same step."""
        if not self.used:
            return
        above, below = self.rank + 1, self.rank
        if above in self.groups:
            self._say_end(above)
            dist.recv(torch.empty(1), self.mesh.first + above, group=self.groups[above])
        if self.thread is not None:
            self.thread.join()
            if self.buffer.error is not None:
                raise self.buffer.error
            dist.send(torch.zeros(1), self.mesh.first + below - 1, group=self.groups[below])
        self.thread, self.used = None, False
        self.buffer.clear()

    def _say_end(self, k: int) -> None:
        self._send(k, [torch.tensor([END_OF_OFFERS])])
        while self.under_way:
            self._end()

    def _close(self) -> None:
        """At the exit of a process that has not flushed: a thread that still receives would crash it.

        If this rank has finished, the others may go on; if it has failed, they must learn that at once.
        """
        failed = self.failed or getattr(sys, "last_value", None) is not None
        with contextlib.suppress(Exception):  # the others, or the group, may be gone
            for group in self.groups.values() if failed else ():
                dist.destroy_process_group(group)
            if self.used and not failed and self.rank + 1 in self.groups:
                self._say_end(self.rank + 1)
        if self.thread is not None:
            self.thread.join(GRACE if failed else None)


def open_buffers(engine: Engine) -> Buffers:
    """The buffers of all boundaries, with the engine's settings. A collective: all processes call it."""
    check(engine.plan, engine.settings)
    buffers: Buffers | None = engine.buffers
    if buffers is None:
        buffers = WireBuffers(engine.mesh) if engine.mesh is not None else LocalBuffers(engine.plan.K)
    buffers.use(engine.settings.buffer, engine.settings.buffer_policy)
    taken = [io_of(stage).inputs for stage in engine.program.stages]
    for w in engine.workers:
        above = [*taken[w.rank + 1 :], *(h.net.io.inputs for r, h in engine.heads.items() if r > w.rank)]
        w.buffers, w.onward = buffers, tuple(sorted({i for inputs in above for i in inputs}))
    return buffers


def _apart(entry: BufferEntry) -> tuple[Any, list[Tensor]]:
    """An entry as JSON data that names its tensors, and the tensors."""
    for value in (entry.target, *(entry.target if isinstance(entry.target, (list, tuple)) else ())):
        if hasattr(value, "_fields"):
            raise UsageError(
                f"dgl-async sends targets between ranks as plain data, and {type(value).__name__} is a class of its "
                f"own; use a dict, a tuple or a tensor as target, or method='dgl'"
            )
    found, data = plain.flat((entry.X, entry.inputs, entry.target, entry.size, entry.weight), "entry")
    tensors = {name: t.cpu().contiguous() for name, t in found.items()}
    specs = [[name, list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in tensors.items()]
    return {"data": data, "tensors": specs}, list(tensors.values())


def _together(structure: Any, receive: Callable[[tuple[int, ...], torch.dtype], Tensor]) -> BufferEntry:
    """The reverse of `_apart`: tensors arrive in the order of their names."""
    tensors = {name: receive(tuple(shape), getattr(torch, dtype)) for name, shape, dtype in structure["tensors"]}
    return BufferEntry(*plain.nested(structure["data"], tensors))
