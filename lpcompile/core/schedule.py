"""What each rank does in one step, as data: the verifier proves it, the simulator plays it, the runtime executes it.

A schedule is one list of instructions per rank for the steady state of training. Every instruction belongs to one
micro-batch, its `slot`, counted from the step's first one: in a skewed method rank 0 may work on slot -2 of step n,
which is the last but one micro-batch of step n-1. All that an instruction reads and writes belongs to its own slot,
so start and end of training need no lists of their own: what belongs to a micro-batch that does not exist is left
out, on all ranks alike, and what is left is a schedule again.

>>> schedule = penalty(plan, ScheduleOptions())
>>> print(schedule)                      # one column per rank
>>> verify(schedule)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lpcompile.core.system.atomic_file import write_text
from lpcompile.errors import ScheduleError

VERSION = 1

# What a Ref can name. The first ones travel between ranks; the others stay where they are made.
MESSAGES = ("lam", "X", "p", "kappa")
LOCAL = ("graph", "aux", "d", "g", "W", "random")

OPS = {
    "recv": "post the receive of a tensor from `peer` into its buffer",
    "wait": "wait until a posted tensor is there",
    "send": "start to send a tensor to `peer`",
    "offer": "put a tensor, with its targets, into the replay buffer of `peer`; waits for nobody",
    "draw": "a tensor that `peer` has offered, from the replay buffer; waits until there is one",
    "aux_forward": "AuxNet of `boundary` makes λ",
    "recall": "λ of `boundary` from the store of samples",
    "stash": "the current weights are kept for a micro-batch's forward and backward",
    "predict": "the weights expected after `ahead` more updates are kept for a micro-batch's forward and backward",
    "forward": "the rank's stage, from λ (or X) to X or the loss; without a graph where none is written",
    "replay": "the stage again, from its kept input with the current weights, for the backward",
    "head": "the stage's own loss from X of `boundary`, and p, its gradient there",
    "penalize": "d = ∂ψ/∂λ of `boundary`, and its violation",
    "kappa": "κ of `boundary` from its store or its network",
    "backward": "the stage's backward, giving p for the boundary below it",
    "backward_input": "the part of the stage's backward that gives p for the boundary below it",
    "backward_weight": "the rest of the stage's backward: gradients of its weights",
    "correct": "g, the gradient of the Lagrangian in λ of `boundary`",
    "distil": "AuxNet of `boundary` learns with g",
    "store": "λ of `boundary` is corrected in the store of samples",
    "multiply": "κ of `boundary` is updated",
    "tied": "gradients of parameters in several stages are summed between their ranks",
    "average": "gradients are averaged over the replicas of a stage",
    "norm": "the gradient's norm over all ranks",
    "step": "the rank's optimizers step",
}
COLLECTIVE = ("tied", "norm")
STEPWISE = ("average", *COLLECTIVE, "step")  # once a step, not once a micro-batch
# of the rank's own stage, at no boundary
STAGE_OPS = ("stash", "predict", "forward", "replay", "backward", "backward_input", "backward_weight")


class Ref(NamedTuple):
    """A tensor (or tuple of tensors) by name: its kind, its boundary (stage for "graph"), and its micro-batch."""

    kind: str
    boundary: int
    slot: int

    def __str__(self) -> str:
        sign = {"lam": "λ", "kappa": "κ"}.get(self.kind, self.kind)
        return f"{sign}{self.boundary}[{self.slot:+d}]" if self.slot else f"{sign}{self.boundary}"


@dataclass(frozen=True)
class Instruction:
    """One thing to do. `reads` and `writes` say all that it touches; messages have one Ref and a peer.

    ahead: updates that lie between the forward and the backward of the micro-batch whose weights are predicted.
    stage: whose forward or backward it is, on a rank that has several; -1 where the rank has one.
    """

    op: str
    slot: int = 0
    boundary: int = 0
    peer: int = -1
    reads: tuple[Ref, ...] = ()
    writes: tuple[Ref, ...] = ()
    ahead: int = 0
    stage: int = -1

    @property
    def ref(self) -> Ref:
        """The tensor of a send, receive, wait, offer or draw."""
        return (self.reads or self.writes)[0]

    def __str__(self) -> str:
        if self.op in ("send", "recv", "offer", "draw"):
            return f"{self.op} {self.ref} {'to' if self.op in ('send', 'offer') else 'from'} {self.peer}"
        if self.op == "wait":
            return f"wait {self.ref}"
        if self.op in STEPWISE:
            return self.op
        at = f" {self.boundary}" if self.op not in STAGE_OPS else f" {self.ahead}" if self.ahead > 1 else ""
        at = f" of stage {self.stage}" if self.stage >= 0 else at
        return f"{self.op}{at}" + (f" [{self.slot:+d}]" if self.slot else "")


@dataclass(frozen=True)
class Schedule:
    """The steady step of a method on K ranks. `depth[r]` receive buffers a tensor on rank r are used in turn."""

    method: str
    K: int
    micro: int
    ranks: tuple[tuple[Instruction, ...], ...]
    depth: tuple[int, ...]
    version: int = VERSION

    @property
    def lag(self) -> int:
        """The skew: slots between making λ of a micro-batch and its last instruction on any rank."""
        return max((-i.slot for rank in self.ranks for i in rank if i.op not in STEPWISE), default=0)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages of a rank; its instructions of a whole step (`step`, `norm`, ...) are those of all of them."""
        return tuple(sorted({i.stage for i in self.ranks[rank] if i.stage >= 0})) or (rank,)

    def lane(self, boundary: int) -> int:
        """Which of the boundaries between two ranks this is: the others have channels of their own."""
        return boundary // self.K

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        data["ranks"] = [[_plain(i) for i in rank] for rank in self.ranks]
        return data

    @staticmethod
    def from_json(data: dict[str, Any]) -> Schedule:
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise ScheduleError(f"this is not a schedule of version {VERSION}; make it again")
        try:
            ranks = tuple(tuple(_instruction(i) for i in rank) for rank in data["ranks"])
            return Schedule(str(data["method"]), int(data["K"]), int(data["micro"]), ranks, tuple(data["depth"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ScheduleError(f"the schedule is broken: {type(error).__name__}: {error}; make it again") from None

    def save(self, path: str | Path) -> None:
        write_text(Path(path), json.dumps(self.to_json(), indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> Schedule:
        return Schedule.from_json(json.loads(Path(path).read_text()))

    def __str__(self) -> str:
        from lpcompile.core.staleness import staleness
        from lpcompile.core.tables import table

        longest = max(map(len, self.ranks))
        rows = [[str(rank[i]) if i < len(rank) else "" for rank in self.ranks] for i in range(longest)]
        micro = f", {self.micro} micro-batches a step" if self.micro > 1 else ""
        late = staleness(self)
        stale = f", staleness {', '.join(map(str, late))}" if any(late) else ""
        return f"{self.method}: K = {self.K}{micro}{stale}\n\n" + table(rows, [f"rank {r}" for r in range(self.K)])


def _plain(i: Instruction) -> dict[str, Any]:
    data: dict[str, Any] = {"op": i.op, "slot": i.slot, "boundary": i.boundary, "peer": i.peer}
    for name, refs in (("reads", i.reads), ("writes", i.writes)):
        data[name] = [[r.kind, r.boundary, r.slot] for r in refs]
    return data | ({"ahead": i.ahead} if i.ahead else {}) | ({"stage": i.stage} if i.stage >= 0 else {})


def _instruction(data: dict[str, Any]) -> Instruction:
    reads, writes = (tuple(Ref(str(k), int(b), int(s)) for k, b, s in data[name]) for name in ("reads", "writes"))
    numbers = (int(data["slot"]), int(data["boundary"]), int(data["peer"]))
    more = (int(data.get("ahead", 0)), int(data.get("stage", -1)))
    return Instruction(str(data["op"]), *numbers, reads, writes, *more)


def moment(item: Instruction | Ref, at: int, micro: int) -> tuple[int, int]:
    """When the instruction at position `at` meets its micro-batch: the step, relative to the micro-batch's, and `at`.

    Micro-batch τ = tM + c is met by an instruction with slot s = qM + c in step t - q. So two events of one micro-batch
    are in the order of their moments, whatever K and the skew, and no schedule has to be unrolled."""
    return (-(item.slot // micro), at)


class Builder:
    """Writes one rank's list.

    >>> b = Builder(rank=1)
    >>> b.recv("lam", 1, slot=0, peer=0); b.wait("lam", 1, slot=0)
    >>> b.do("forward", 0, reads=[("lam", 1)], writes=[("graph", 1)])

    ranks: of each stage, where ranks have several; `stage` is then the one that is written for, and peers are stages.
    Nothing is sent between stages of one rank: one reads what the other has made.
    """

    def __init__(self, rank: int, ranks: Sequence[int] = ()) -> None:
        self.rank = self.stage = rank
        self.ranks = ranks
        self.items: list[Instruction] = []

    def meets(self, boundary: int) -> bool:
        """Whether both sides of a boundary are on this rank."""
        return bool(self.ranks) and self.ranks[boundary - 1] == self.ranks[boundary]

    def recv(self, kind: str, boundary: int, slot: int, peer: int) -> None:
        if not self.meets(boundary):
            peer = self.ranks[peer] if self.ranks else peer
            self.items.append(Instruction("recv", slot, boundary, peer, writes=(Ref(kind, boundary, slot),)))

    def wait(self, kind: str, boundary: int, slot: int) -> None:
        if not self.meets(boundary):
            self.items.append(Instruction("wait", slot, boundary, writes=(Ref(kind, boundary, slot),)))

    def send(self, kind: str, boundary: int, slot: int, peer: int) -> None:
        if not self.meets(boundary):
            peer = self.ranks[peer] if self.ranks else peer
            self.items.append(Instruction("send", slot, boundary, peer, reads=(Ref(kind, boundary, slot),)))

    def offer(self, kind: str, boundary: int, slot: int, peer: int) -> None:
        self.items.append(Instruction("offer", slot, boundary, peer, reads=(Ref(kind, boundary, slot),)))

    def draw(self, kind: str, boundary: int, slot: int, peer: int) -> None:
        self.items.append(Instruction("draw", slot, boundary, peer, writes=(Ref(kind, boundary, slot),)))

    def do(
        self,
        op: str,
        slot: int = 0,
        boundary: int = 0,
        reads: Sequence[tuple[str, int]] = (),
        writes: Sequence[tuple[str, int]] = (),
        ahead: int = 0,
    ) -> None:
        taken, made = (tuple(Ref(kind, b, slot) for kind, b in refs) for refs in (reads, writes))
        stage = self.stage if self.ranks and op in STAGE_OPS else -1
        self.items.append(Instruction(op, slot, boundary, reads=taken, writes=made, ahead=ahead, stage=stage))


def build(method: str, micro: int, builders: Sequence[Builder]) -> Schedule:
    """A schedule with as few receive buffers as its instructions need."""
    from lpcompile.core.verify import buffers_needed

    ranks = tuple(tuple(b.items) for b in builders)
    schedule = Schedule(method, len(ranks), micro, ranks, (1,) * len(ranks))
    return replace(schedule, depth=tuple(buffers_needed(schedule, r) for r in range(len(ranks))))
