"""Replay buffers between processes: a thread of the receiver takes every offer off the wire as soon as it comes.

So an offer is over soon, however slow the receiver's stage is. Each pair of neighbours has a gloo group of its own, on
which nothing else is sent: also on GPUs offers go through the memory of the host, where the buffer is.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import pickle
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from lpcompile.core.stage_io import io_of
from lpcompile.runtime.comm.buffer import Buffer, Entry, LocalReplay, Replay, check
from lpcompile.runtime.comm.mesh import Mesh
from lpcompile.runtime.launch.launch import GRACE, PATIENCE

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

END = -1  # in the place of a header's length: all offers of this flush have been sent
AHEAD = 8  # offers under way at most: they wait for the receiver's thread, never for its stage


@dataclass(frozen=True)
class _Place:
    """Where tensor i of a message belongs, and what it looks like."""

    i: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class WireReplay:
    """One rank a process; see `Replay`. The group's long timeout is for ranks that are far ahead of the others."""

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

    def offer(self, k: int, entry: Entry) -> tuple[int, float]:
        self.used = True
        structure, tensors = _apart(entry)
        header = torch.frombuffer(bytearray(pickle.dumps(structure)), dtype=torch.uint8)
        tensors = [torch.tensor([len(header)]), header, *(t for t in tensors if t.numel())]
        return sum(t.nbytes for t in tensors), self._send(k, tensors)

    def _send(self, k: int, tensors: list[Tensor]) -> float:
        begin = time.perf_counter()
        while len(self.under_way) >= AHEAD:
            self._end()
        held = time.perf_counter() - begin
        works = [dist.isend(t, self.mesh.first + k, group=self.groups[k]) for t in tensors]
        self.under_way.append((works, tensors))
        return held

    def _end(self) -> None:
        for work in self.under_way.pop(0)[0]:
            work.wait()

    def draw(self, k: int) -> tuple[Entry, int] | None:
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
        """The receiving thread: offers into the buffer until their end, or until the connection breaks."""

        def receive(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            tensor = torch.empty(shape, dtype=dtype)
            if tensor.numel():
                dist.recv(tensor, self.mesh.first + k - 1, group=self.groups[k])
            return tensor

        try:
            while (length := int(receive((1,), torch.int64))) != END:
                structure = pickle.loads(receive((length,), torch.uint8).numpy().tobytes())
                self.buffer.put(_together(structure, receive))
        except BaseException as error:
            self.buffer.fail(error)

    def drain(self) -> None:
        """The rank below says that it is through; the rank above, when it has done as many steps, answers."""
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
        self._send(k, [torch.tensor([END])])
        while self.under_way:
            self._end()

    def _close(self) -> None:
        """At the end of a process that has not flushed: a thread that still receives would bring it down.

        If this rank is through, the others may go on; if it has failed, they must learn that at once.
        """
        failed = self.failed or getattr(sys, "last_value", None) is not None
        with contextlib.suppress(Exception):  # the others, or the group, may be gone
            for group in self.groups.values() if failed else ():
                dist.destroy_process_group(group)
            if self.used and not failed and self.rank + 1 in self.groups:
                self._say_end(self.rank + 1)
        if self.thread is not None:
            self.thread.join(GRACE if failed else None)


def open_replay(engine: Engine) -> Replay:
    """The buffers of all boundaries, with the engine's settings; every process must ask for them in the same moment."""
    check(engine.plan, engine.settings)
    replay: Replay | None = engine.replay
    if replay is None:
        replay = WireReplay(engine.mesh) if engine.mesh is not None else LocalReplay(engine.plan.K)
    replay.use(engine.settings.buffer, engine.settings.buffer_policy)
    taken = [io_of(stage).inputs for stage in engine.program.stages]
    for w in engine.workers:
        above = [*taken[w.rank + 1 :], *(h.net.io.inputs for r, h in engine.heads.items() if r > w.rank)]
        w.replay, w.onward = replay, tuple(sorted({i for inputs in above for i in inputs}))
    return replay


def _apart(entry: Entry) -> tuple[Any, list[Tensor]]:
    """An entry with places where its tensors were, and the tensors."""
    tensors: list[Tensor] = []

    def take(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        tensors.append(value.detach().cpu().contiguous())
        return _Place(len(tensors) - 1, tuple(value.shape), value.dtype)

    parts = (entry.X, entry.inputs, entry.target, entry.size, entry.weight)
    return pytree.tree_map(take, parts), tensors


def _together(structure: Any, receive: Callable[[tuple[int, ...], torch.dtype], Tensor]) -> Entry:
    """The places are met in the order in which the tensors were sent."""
    return Entry(*pytree.tree_map(lambda v: receive(v.shape, v.dtype) if isinstance(v, _Place) else v, structure))
