"""The replay buffer between two stages of `dgl-async`: a stage offers its X, the next one draws.

An offer never waits for a slow receiver: its micro-batch goes into the receiver's buffer, and replaces another one when
that is full. A draw waits only for the first micro-batch; a stage that is faster than the one below draws some of them
again. A micro-batch travels with its targets and with the model inputs of later stages, since the receiver's own loader
is at another batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Instruction
from lpcompile.errors import UsageError
from lpcompile.runtime.comm.transport import Tensors
from lpcompile.runtime.engine.batches.batch import MicroBatch, to_device
from lpcompile.runtime.engine.settings import BUFFER_POLICIES, Settings
from lpcompile.runtime.engine.worker import Worker

UNUSED_INPUT = torch.empty(0)  # placeholder for an input that no stage from here on takes


@dataclass(frozen=True)
class BufferEntry:
    """A micro-batch at a boundary."""

    X: Tensors
    inputs: dict[int, Tensor]  # of the model, by position, for this stage and later ones
    target: Any
    size: int
    weight: float  # its share of the step that it came from


@dataclass
class _Kept:
    entry: BufferEntry
    number: int  # in order of arrival
    uses: int = 0


class Buffer:
    """The last micro-batches of a boundary. `put` and `draw` may be called from two threads.

    least-reused: draws the entry drawn least often (Belilovsky et al. 2020), the oldest of several, and evicts the one
    drawn most often. newest: draws the newest. random: draws any. These two evict the oldest.
    """

    def __init__(self) -> None:
        self.size, self.policy = 1, BUFFER_POLICIES[0]
        self.kept: list[_Kept] = []
        self.count = 0
        self.skipped = 0  # evicted without having been drawn
        self.changed = threading.Condition()
        self.error: BaseException | None = None

    def put(self, entry: BufferEntry) -> None:
        with self.changed:
            if len(self.kept) >= self.size:
                gone = min(self.kept, key=lambda k: (-k.uses if self.policy == "least-reused" else 0, k.number))
                self.skipped += gone.uses == 0
                self.kept.remove(gone)
            self.kept.append(_Kept(entry, self.count))
            self.count += 1
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Nothing more will come."""
        with self.changed:
            self.error = error
            self.changed.notify_all()

    def draw(self, wait: bool = False) -> tuple[BufferEntry, int] | None:
        """An entry and how often it was drawn before; None from an empty buffer, unless `wait`."""
        with self.changed:
            while wait and not self.kept and self.error is None:
                self.changed.wait()
            if self.error is not None:
                raise self.error
            if not self.kept:
                return None
            found = self._choose()
            found.uses += 1
            return found.entry, found.uses - 1

    def _choose(self) -> _Kept:
        if self.policy == "random":
            return self.kept[int(torch.randint(len(self.kept), ()))]
        if self.policy == "newest":
            return self.kept[-1]
        return min(self.kept, key=lambda k: (k.uses, k.number))

    def clear(self) -> None:
        with self.changed:
            self.kept.clear()
            self.count = self.skipped = 0

    def nbytes(self) -> int:
        with self.changed:
            found = [t for k in self.kept for t in pytree.tree_leaves((k.entry.X, k.entry.inputs, k.entry.target))]
        return sum(t.nbytes for t in found if isinstance(t, Tensor))


class Buffers(Protocol):
    """The buffers of all boundaries, each on the rank above it, as `offer` and `draw` use them."""

    def use(self, size: int, policy: str) -> None: ...

    def offer(self, k: int, entry: BufferEntry) -> tuple[int, float]:
        """Returns the bytes sent, and the seconds waited for earlier offers."""
        ...

    def draw(self, k: int) -> tuple[BufferEntry, int] | None:
        """An entry and how often it was drawn before; None if there is none and this rank should yield its turn."""
        ...

    def skipped(self, k: int) -> int: ...

    def nbytes(self, k: int) -> int:
        """Size of the buffer of boundary k; 0 if it is on another rank."""
        ...

    def fail(self) -> None:
        """Note that this rank has failed, so that on exit the others learn it."""
        ...

    def drain(self) -> None:
        """Called by all ranks after the same step: wait for offers in flight, and empty the buffers."""
        ...


class LocalBuffers:
    """All ranks in one process: offers arrive at once, so that runs are reproducible bit for bit."""

    def __init__(self, K: int) -> None:
        self.buffers = {k: Buffer() for k in range(1, K)}

    def use(self, size: int, policy: str) -> None:
        for buffer in self.buffers.values():
            buffer.size, buffer.policy = size, policy

    def offer(self, k: int, entry: BufferEntry) -> tuple[int, float]:
        self.buffers[k].put(entry)
        return sum(t.nbytes for t in entry.X), 0.0

    def draw(self, k: int) -> tuple[BufferEntry, int] | None:
        return self.buffers[k].draw()

    def skipped(self, k: int) -> int:
        return self.buffers[k].skipped

    def nbytes(self, k: int) -> int:
        return self.buffers[k].nbytes() if k in self.buffers else 0

    def fail(self) -> None:
        pass

    def drain(self) -> None:
        for buffer in self.buffers.values():
            buffer.clear()


def check(plan: Plan, settings: Settings) -> None:
    """Refuse options that make ranks wait for each other in every step."""
    if plan.tied:
        name, stages = plan.tied[0]
        raise UsageError(
            f"dgl-async lets no stage wait for another, but the gradients of {name} in stages {stages} are summed in "
            f"every step; compile with tied='together', or use method='dgl'"
        )
    if settings.clip_scope == "global" or settings.autocast == torch.float16:
        what = "clip_scope='global'" if settings.clip_scope == "global" else "float16's common loss scale"
        raise UsageError(
            f"dgl-async lets no stage wait for another, but {what} needs all gradients' norms in every step; "
            f"use clip_scope='rank' and torch.bfloat16, or method='dgl'"
        )


def offer(w: Worker, item: Instruction, slot: int) -> None:
    """Send X_{k+1} of this micro-batch, with its targets and the model inputs of later stages.

    Targets and inputs are copied: they are the user's tensors, who may write into them after the step.
    """
    assert w.buffers is not None
    k, batch = item.boundary, w.batches[slot]
    inputs, target = pytree.tree_map(
        lambda t: t.clone() if isinstance(t, Tensor) else t, ({i: batch.inputs[i] for i in w.onward}, batch.target)
    )
    X = w.message(("X", k, slot), w.values["X", k, slot])
    sent, held = w.buffers.offer(k, BufferEntry(X, inputs, target, batch.size, batch.weight))
    w.sent, w.waited = w.sent + sent, w.waited + held


def draw(w: Worker, item: Instruction, slot: int) -> Iterator[None]:
    """X_k of a micro-batch from the buffer; its targets and inputs replace this rank's own."""
    assert w.buffers is not None
    k, begin = item.boundary, time.perf_counter()
    found = w.buffers.draw(k)
    while found is None:
        yield
        found = w.buffers.draw(k)
    w.waited += time.perf_counter() - begin
    entry, uses = found
    to = {i: t.to(w.device) for i, t in entry.inputs.items()}
    inputs = tuple(to.get(i, UNUSED_INPUT) for i in range(max(to, default=-1) + 1))
    target = to_device(entry.target, w.device)
    w.batches[slot] = MicroBatch(inputs, target, None, entry.size, entry.weight, w.step, w.updater.scale)
    w.values["X", k, slot] = tuple(t.to(w.device) for t in entry.X)
    w.note(f"reused {w.rank}", torch.tensor(float(uses)), 1.0)
    w.note(f"skipped {w.rank}", torch.tensor(float(w.buffers.skipped(k))), 1.0)
