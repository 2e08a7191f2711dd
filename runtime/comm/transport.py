"""Transport of tensors between ranks: in one process, where ranks take turns, or by torch.distributed.

Both have the schedule's operations: `post`, `arrived`, `send`, and `gather` for the few collectives. In one process a
rank that has to wait yields its turn; between processes it blocks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from lpcompile.core.schedule import MESSAGES
from lpcompile.runtime.comm.fingerprint import Expected, Headers
from lpcompile.runtime.comm.mesh import Mesh

Tensors = tuple[Tensor, ...]
Key = tuple[str, int, int]  # kind, boundary, micro-batch (counted from the start of training)
# Limit for each kind and peer: a rank that reaches it waits for its oldest send. Tensors are held until then: gloo does
# not tell that a send is over before it is waited for.
MAX_SENDS_IN_FLIGHT = 8
Shapes = Sequence[tuple[tuple[int, ...], torch.dtype]]
FIRST_TAG, TAGGED_SIZES = 1000, 2**26  # of gloo messages: above those of evaluation and fingerprints


def dense(tensor: Tensor, channels_last: bool) -> tuple[Tensor, Tensor]:
    """The tensor without gaps in memory, and a contiguous view of it in memory order."""
    if channels_last and tensor.dim() == 4:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor, tensor.permute(0, 2, 3, 1)
    tensor = tensor.contiguous()
    return tensor, tensor


class Transport(Protocol):
    """Sends, receives and collectives, as the executor uses them."""

    def send(self, rank: int, peer: int, key: Key, tensors: Tensors) -> float:
        """Returns the seconds that this rank waited because it was too far ahead of its peer."""
        ...

    def post(self, rank: int, peer: int, key: Key, shapes: Shapes, depth: int) -> None: ...

    def arrived(self, rank: int, key: Key) -> Tensors | None:
        """The tensors of a posted receive; None if they are not there and this rank should yield its turn."""
        ...

    def gather(self, rank: int, name: str, ranks: Sequence[int], tensor: Tensor) -> list[Tensor] | None:
        """The tensors of all these ranks in their order; None if some are not there yet."""
        ...


class Local:
    """All ranks in one process: a sent tensor is handed over without a copy."""

    def __init__(self) -> None:
        self.mail: dict[tuple[int, Key], Tensors] = {}
        self.met: dict[str, dict[int, Tensor]] = {}
        self.left: dict[str, set[int]] = {}

    def send(self, rank: int, peer: int, key: Key, tensors: Tensors) -> float:
        self.mail[peer, key] = tensors
        return 0.0

    def post(self, rank: int, peer: int, key: Key, shapes: Shapes, depth: int) -> None:
        pass

    def arrived(self, rank: int, key: Key) -> Tensors | None:
        return self.mail.pop((rank, key), None)

    def gather(self, rank: int, name: str, ranks: Sequence[int], tensor: Tensor) -> list[Tensor] | None:
        found = self.met.setdefault(name, {})
        found[rank] = tensor
        if len(found) < len(ranks):
            return None
        gone = self.left.setdefault(name, set())
        gone.add(rank)
        tensors = [found[r] for r in ranks]
        if len(gone) == len(ranks):
            del self.met[name], self.left[name]
        return tensors

    def forget(self, name: str) -> None:
        """Those that have met will not ask again."""
        self.met.pop(name, None)
        self.left.pop(name, None)


class Distributed:
    """One rank per process; `ranks` are those of the stages, where they have several. Receives go into buffers that are
    used in turn; sends hold their tensors until they end.

    Tensors of one kind travel in one direction between two ranks, in the schedule's order, on their own channel (a tag
    on gloo, a communicator on NCCL), so that a receive posted early never blocks another message. A tag tells the
    tensor's size: gloo ends a process that gets more than it has room for, before the batch's fingerprint is read.
    """

    def __init__(
        self, device: torch.device, mesh: Mesh, channels_last: bool = False, ranks: Sequence[int] = ()
    ) -> None:
        self.device, self.mesh, self.channels_last, self.ranks = device, mesh, channels_last, ranks
        self.nccl = dist.get_backend() == "nccl"
        lanes = range(max(1, len(ranks) // mesh.K))
        self.groups = {(kind, lane): dist.new_group() for kind in MESSAGES for lane in lanes} if self.nccl else {}
        self.control = dist.new_group(backend="gloo") if self.nccl else dist.group.WORLD
        self.subsets: dict[tuple[int, ...], Any] = {}
        self.buffers: dict[tuple[str, int, int, Any], Tensors] = {}
        self.headers = Headers(mesh, self.control)
        self.expected: dict[Key, Expected] = {}
        self.posted: dict[Key, tuple[list[Any], Tensors]] = {}
        self.sending: dict[tuple[str, int, int], list[tuple[list[Any], Tensors]]] = {}
        self.inside = Local()  # where the stages of this process meet before they meet others
        self.met: dict[str, tuple[list[Tensor], set[int]]] = {}  # what they then take, and who has not yet
        self.turns: list[str] = []  # names in the order in which all processes gather them

    def send(self, rank: int, peer: int, key: Key, tensors: Tensors) -> float:
        kind, boundary, slot = key
        under_way, begin = self.sending.setdefault((kind, boundary, peer), []), time.perf_counter()
        while len(under_way) >= MAX_SENDS_IN_FLIGHT:
            self._end(under_way.pop(0))
        held = time.perf_counter() - begin
        both = [dense(t, self.channels_last) for t in tensors]
        ahead = self.headers.send(peer, kind, boundary, slot)
        works = [dist.isend(view, self.mesh.first + peer, **self._channel(kind, boundary, view)) for _, view in both]
        under_way.append(([*(w for w, _ in ahead), *works], (*(t for _, t in ahead), *(t for t, _ in both))))
        return held

    def post(self, rank: int, peer: int, key: Key, shapes: Shapes, depth: int) -> None:
        kind, boundary, slot = key
        place = (kind, boundary, slot % depth, tuple(shapes))
        buffers = self.buffers.get(place)
        if buffers is None:
            rooms = [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in shapes]
            self.buffers[place] = buffers = tuple(dense(t, self.channels_last)[0] for t in rooms)
        self._not_sending(kind, boundary, buffers)
        header = self.headers.expect(peer, kind, boundary, slot)
        if header is not None:
            self.expected[key] = header
        views = [dense(t, self.channels_last)[1] for t in buffers]
        works = [dist.irecv(view, self.mesh.first + peer, **self._channel(kind, boundary, view)) for view in views]
        self.posted[key] = (works, buffers)

    def arrived(self, rank: int, key: Key) -> Tensors | None:
        header = self.expected.pop(key, None)
        if header is not None:
            self.headers.check(header, key[2])
        works, buffers = self.posted.pop(key)
        for work in works:
            work.wait()
        return buffers

    def gather(self, rank: int, name: str, ranks: Sequence[int], tensor: Tensor) -> list[Tensor] | None:
        """The stages of this process meet first; then the processes, each with as many tensors as the one with most."""
        if name not in self.met:
            if name in self.turns and name != self.turns[0]:
                return None
            places = [self.place(s) for s in ranks]
            here = [s for s, place in zip(ranks, places, strict=True) if place == self.mesh.stage]
            mine = self.inside.gather(rank, name, here, tensor.contiguous())
            if mine is None or len(here) == len(ranks):
                return mine
            self.inside.forget(name)
            self.met[name] = (self._all(mine, places), set(here))
            if name in self.turns:
                self.turns.append(self.turns.pop(0))
        found, left = self.met[name]
        left.discard(rank)
        if not left:
            del self.met[name]
        return found

    def _all(self, mine: Sequence[Tensor], places: Sequence[int]) -> list[Tensor]:
        """The tensors of stages on these ranks, in their order; `mine` are those of this rank."""
        members = tuple(dict.fromkeys(sorted(places)))
        found: dict[int, list[Tensor]] = {place: [] for place in members}
        for i in range(max(places.count(place) for place in members)):
            tensor = mine[min(i, len(mine) - 1)]
            one = [torch.empty_like(tensor) for _ in members]
            dist.all_gather(one, tensor, group=self.subset(members))
            for place, other in zip(members, one, strict=True):
                found[place].append(other)
        return [found[place].pop(0) for place in places]

    def place(self, stage: int) -> int:
        """The rank of a stage."""
        return self.ranks[stage] if self.ranks else stage

    def subset(self, ranks: Sequence[int]) -> Any:
        """The group of these ranks. All processes must have asked for it in the same order, see `prepare`."""
        whole = len(ranks) == self.mesh.K
        return (self.mesh.along or dist.group.WORLD) if whole else self.subsets[tuple(ranks)]

    def prepare(self, tied: Sequence[tuple[str, Sequence[int]]]) -> None:
        """For parameters with gradients of several stages: groups, and the order of this process's part in them."""
        members = {name: tuple(sorted({self.place(s) for s in stages})) for name, stages in tied}
        self.turns = [f"tied {n}" for n, ranks in members.items() if self.mesh.stage in ranks and len(ranks) > 1]
        for ranks in sorted(set(members.values())):
            if len(ranks) < self.mesh.K and ranks not in self.subsets:
                for first in range(0, dist.get_world_size(), self.mesh.K):
                    group = dist.new_group([first + r for r in ranks])
                    if first == self.mesh.first:
                        self.subsets[ranks] = group

    def drain(self) -> None:
        """Wait until everything that was sent has left."""
        for under_way in self.sending.values():
            while under_way:
                self._end(under_way.pop(0))

    def _channel(self, kind: str, boundary: int, tensor: Tensor) -> dict[str, Any]:
        lane = boundary // self.mesh.K  # as in `Schedule.lane`
        if self.nccl:
            return {"group": self.groups[kind, lane]}
        number = lane * TAGGED_SIZES + tensor.numel() % TAGGED_SIZES
        return {"tag": FIRST_TAG + MESSAGES.index(kind) + len(MESSAGES) * number}

    def _not_sending(self, kind: str, boundary: int, buffers: Tensors) -> None:
        """Before a buffer is used again, end the sends that pass its tensor on."""
        for (k, b, _), under_way in self.sending.items():
            if (k, b) == (kind, boundary):
                while any(t.data_ptr() == mine.data_ptr() for _, ts in under_way for t in ts for mine in buffers):
                    self._end(under_way.pop(0))

    @staticmethod
    def _end(sent: tuple[list[Any], Tensors]) -> None:
        for work in sent[0]:
            work.wait()
