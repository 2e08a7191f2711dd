"""Whether all ranks train on the same batch: rank 0's images must not meet rank 1's targets of other samples.

A fingerprint is a few numbers: a batch's size, and a checksum each of its targets, sample numbers and inputs, as far
as the rank has them. At the first step all ranks exchange theirs. Later one message of each step from a rank to
another has the fingerprint ahead of it (`Headers`), on a channel of its own: nobody waits for it who would not wait for
the message.

>>> of_batch(0, 64, None, y, None)
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from lpcompile.core.schedule import MESSAGES, Schedule
from lpcompile.errors import TrainingError

if TYPE_CHECKING:
    from lpcompile.runtime.comm.mesh import Mesh
    from lpcompile.runtime.engine.batches.batch import MicroBatch

# A part is its value plus one, and the rank that it comes from in the low bits; 0 where a rank does not have it.
Fingerprint = tuple[int, ...]
Carrier = tuple[int, str, int]  # peer, kind and boundary of the message that has a fingerprint ahead of it
PARTS = ("batch size", "targets", "sample numbers", "inputs")
NOTHING_KNOWN: Fingerprint = (0,) * len(PARTS)
RANK_BITS = 16
MOST_ELEMENTS = 2048  # of a tensor that are looked at
HEADER_TAG = 200  # apart from the tags of tensors and of evaluation
REMEDY = (
    "every rank must take the same batches in the same order: let program.fit or trainer.fit run the loop, which "
    "shuffle by rank 0's random state, or seed all ranks alike (torch.manual_seed(0) before the loader is used, and "
    "whatever random state a sampler or data set has of its own)"
)


def of_batch(rank: int, size: int, inputs: Any, target: Any, index: Any, on_gpu: bool = True) -> Fingerprint:
    """The fingerprint of a batch; None for what this rank does not have.

    on_gpu: whether tensors on a GPU are looked at, which waits for it; else they count as not there.
    """
    values = (None if v is None else checksum(v, on_gpu) for v in (target, index, inputs))
    return tuple(0 if v is None else (v + 1) << RANK_BITS | rank for v in (size, *values))


def checksum(tree: Any, on_gpu: bool = True) -> int | None:
    """CRC-32 of the numbers, texts and (sampled) tensors in nested containers; None where it would wait for a GPU."""
    found = 0
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor):
            if leaf.device.type != "cpu" and not on_gpu:
                return None
            found = zlib.crc32(f"{leaf.dtype}{tuple(leaf.shape)}".encode(), found)
            found = zlib.crc32(_some_bytes(leaf), found)
        elif isinstance(leaf, (int, float, str, bytes)):
            found = zlib.crc32(repr(leaf).encode(), found)
    return found


def _some_bytes(tensor: Tensor) -> bytes:
    """A bounded number of elements, of every sample before of every position."""
    if tensor.layout != torch.strided or tensor.device.type == "meta":
        return b""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    while tensor.numel() > MOST_ELEMENTS:
        dim = max(range(1, tensor.dim()), key=lambda d: tensor.shape[d], default=0)
        dim = dim if tensor.shape[dim] > 1 else 0
        tensor = tensor[(slice(None),) * dim + (slice(1, None, 2),)]
    return tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()


def carriers(schedule: Schedule, rank: int) -> tuple[frozenset[Carrier], frozenset[Carrier]]:
    """The messages of a rank that fingerprints go ahead of, out and in: one for each ordered pair of ranks."""
    chosen: dict[tuple[int, int], tuple[int, int]] = {}
    for sender, items in enumerate(schedule.ranks):
        for item in items:
            if item.op == "send" and rank in (sender, item.peer):
                pair, this = (sender, item.peer), (MESSAGES.index(item.ref.kind), item.ref.boundary)
                chosen[pair] = min(this, chosen.get(pair, this))
    out = frozenset((to, MESSAGES[kind], k) for (by, to), (kind, k) in chosen.items() if by == rank)
    return out, frozenset((by, MESSAGES[kind], k) for (by, to), (kind, k) in chosen.items() if to == rank)


class Headers:
    """The fingerprints that one rank sends and expects: `step` and the parts, ahead of the first micro-batch's message.

    An end, in place of a step, says that this rank trains no further for now. `batches` are those of the rank's worker.
    """

    def __init__(self, mesh: Mesh, group: Any) -> None:
        self.mesh, self.group, self.rank = mesh, group, mesh.first + mesh.stage
        self.batches: dict[int, MicroBatch] = {}
        self.out: frozenset[Carrier] = frozenset()
        self.into: frozenset[Carrier] = frozenset()

    def use(self, schedule: Schedule) -> None:
        self.out, self.into = carriers(schedule, self.mesh.stage)

    def send(self, peer: int, kind: str, boundary: int, slot: int) -> list[tuple[Any, Tensor]]:
        """Start to send the header that goes ahead of this message, if there is one."""
        batch = self.batches.get(slot)
        if batch is None or batch.fingerprint is None or (peer, kind, boundary) not in self.out:
            return []
        return [self.start(peer, batch.step, batch.fingerprint)]

    def start(self, peer: int, step: int, fingerprint: Fingerprint = NOTHING_KNOWN) -> tuple[Any, Tensor]:
        header = torch.tensor([step, *fingerprint])
        return dist.isend(header, self.mesh.first + peer, group=self.group, tag=HEADER_TAG), header

    def expect(self, peer: int, kind: str, boundary: int, slot: int) -> Expected | None:
        batch = self.batches.get(slot)
        if batch is None or batch.fingerprint is None or (peer, kind, boundary) not in self.into:
            return None
        return self.receive(peer)

    def receive(self, peer: int) -> Expected:
        header = torch.empty(1 + len(PARTS), dtype=torch.int64)
        return dist.irecv(header, self.mesh.first + peer, group=self.group, tag=HEADER_TAG), header, peer

    def check(self, expected: Expected, slot: int) -> None:
        """Wait for a header and compare it with this rank's own batch; parts that this rank lacks are passed on."""
        batch = self.batches[slot]
        assert batch.fingerprint is not None
        self.batches[slot] = batch.known_as(self.checked(expected, batch.step, batch.fingerprint))

    def checked(self, expected: Expected, step: int, mine: Fingerprint) -> Fingerprint:
        work, header, peer = expected
        work.wait()
        other, *parts = header.tolist()
        if other != step:
            ended, going_on = sorted((step, other))
            if -1 - ended == going_on:  # one rank has finished its steps, perhaps to cut the next batch otherwise
                compare((mine, parts), going_on)
            raise TrainingError(_out_of_step(self.rank, step, self.mesh.first + peer, other))
        compare((mine, parts), step)
        return tuple(a or b for a, b in zip(mine, parts, strict=True))

    def end(self, steps: int, size: int = 0) -> None:
        """All ranks end after the same number of steps: each hears it from those that it gets messages from.

        size: of the next batch, if steps end because it is cut otherwise.
        """
        mine = of_batch(self.rank, size, None, None, None) if size else NOTHING_KNOWN
        sent = [self.start(peer, -steps - 1, mine) for peer, _, _ in sorted(self.out)]
        expected = [self.receive(peer) for peer, _, _ in sorted(self.into)]
        for one in expected:
            self.checked(one, -steps - 1, mine)
        for work, _ in sent:
            work.wait()

    def meet(self, step: int, mine: Fingerprint) -> None:
        """Compare the batches of all ranks, at the first step; every rank says the same of a difference."""
        everyone = [torch.empty(1 + len(PARTS), dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, torch.tensor([step, *mine]), group=self.group)
        found = [t.tolist() for t in everyone]
        for rank, (other, *_) in enumerate(found):
            if other != found[0][0]:
                raise TrainingError(_out_of_step(0, found[0][0], rank, other))
        for first in range(0, len(found), self.mesh.K):
            compare([parts for _, *parts in found[first : first + self.mesh.K]], step)


Expected = tuple[Any, Tensor, int]  # the receive under way, its buffer, and the peer


def compare(found: Iterable[Sequence[int]], step: int) -> None:
    """Name the ranks whose batch differs from that of most; where two are as many, from the lowest rank's."""
    for name, values in zip(PARTS, zip(*found, strict=True), strict=True):
        known = {v & ((1 << RANK_BITS) - 1): (v >> RANK_BITS) - 1 for v in values if v}
        common = Counter(known[r] for r in sorted(known)).most_common(1)
        others = [r for r in sorted(known) if known[r] != common[0][0]]
        if others:
            same = [r for r in sorted(known) if r not in others]
            what = f"other {name} in its batch than {_ranks(same)}"
            if name == PARTS[0]:
                what = f"a batch of {known[others[0]]} samples, {_ranks(same)} one of {known[same[0]]}"
            raise TrainingError(f"batch {step}: {_ranks(others[:1])} has {what}; {REMEDY}")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _out_of_step(mine: int, step: int, peer: int, other: int) -> str:
    if step >= 0 and other >= 0:
        return (
            f"rank {mine} is at step {step} and rank {peer} at step {other}: all ranks must take every batch, and load "
            f"the same checkpoint"
        )
    ended = {r: -s - 1 for r, s in ((mine, step), (peer, other)) if s < 0}
    rank = min(ended, key=lambda r: ended[r])
    more = peer if rank == mine else mine
    return (
        f"rank {rank} ended after {ended[rank]} steps and rank {more} goes on: their loaders have different lengths, "
        f"or rank {rank} alone evaluates, saves or takes the weights; give all ranks the same data, batch size and "
        f"number of epochs, and let all of them call the trainer alike"
    )
