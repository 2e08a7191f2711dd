"""The columns of the paper's Table 1, derived from the dependencies in a method's schedule.

>>> marks = properties(schedule)
>>> marks["backward unlocking"].holds, marks["backward unlocking"].why
(True, "rank 0 goes back through a micro-batch 1 slot after rank 1 did")

All that an instruction reads and writes belongs to one micro-batch, so its dependencies are a graph over the
instructions of that micro-batch. Their slots tell whether two of them fall into the same step: an instruction with slot
s handles micro-batch τ = tM + s in step t.

- forward unlocking: no rank's forward has to wait for another rank's forward of the same micro-batch (λ takes its
  place, or a buffer that nobody waits for); forward independency: nor does it read anything that comes from there.
- backward unlocking: no rank needs, for its backwards of a step, all those that another rank makes in that step.
- update unlocking: no rank's weights wait for the forward of the step's whole mini-batch on a later rank.
- extra memory: something is kept for more than one micro-batch at a time, or for samples. extra network: something
  besides the model learns. model solution: no rank but the last has a loss of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lpcompile.core.plan import BoundaryPlan, Plan
from lpcompile.core.schedule import STEPWISE, Instruction, Ref, Schedule, moment
from lpcompile.runtime.methods import METHODS, get_method

NAMES = (
    "model solution",
    "forward unlocking",
    "backward unlocking",
    "update unlocking",
    "forward independency",
    "extra memory",
    "extra network",
)
# As printed, in the order of NAMES: for comparison only, nothing is derived from it. "Our Method" is `penalty`.
PAPER_TABLE_1 = {method.name: method.table_1 for method in METHODS.values() if method.table_1}

BACKWARD = ("backward", "backward_input", "backward_weight")
LOCAL_LOSS = ("head",)
NETWORKS = {"aux_forward": "AuxNets", "distil": "AuxNets", "head": "auxiliary heads"}
STORES = {
    "recall": "λ of every sample",
    "store": "λ of every sample",
    "draw": "a buffer of batches that other ranks offered",
}
TOLD = {"graph": "graphs", "X": "boundary activations", "lam": "λ"}  # shown first if several are kept
BUFFERS = {"draw": "offer"}  # reader and writer of a replay buffer, for which nobody waits

Node = tuple[int, int]  # rank, position in its list


@dataclass(frozen=True)
class Mark:
    """One property, and its reason in the schedule."""

    holds: bool
    why: str

    @property
    def sign(self) -> str:
        return "✓" if self.holds else "×"


def properties(schedule: Schedule) -> dict[str, Mark]:
    """All of NAMES. Take K >= 3: with two ranks some methods that differ look alike."""
    needs = _Needs(schedule)
    marks = [_solution(schedule), _forward(needs), _backward(needs), _update(needs), _independent(needs),
             _memory(schedule), _network(schedule)]  # fmt: skip
    return dict(zip(NAMES, marks, strict=True))


def differences(method: str, marks: dict[str, Mark]) -> list[str]:
    """Differences from the paper's table, with their reasons."""
    printed = PAPER_TABLE_1.get(method, "")
    return [
        f"{method}, {name}: {mark.sign} here, {sign} in the paper's table: {mark.why}"
        for (name, mark), sign in zip(marks.items(), printed, strict=False)
        if mark.sign != sign
    ]


def bare_plan(K: int, method: str = "bp", batch: int | None = None) -> Plan:
    """The parts of a plan for K ranks that a schedule depends on, without a model."""
    ranks = get_method(method).ranks(K)
    stages = len(ranks) or K
    boundaries = tuple(BoundaryPlan(k, 0, 0, "", "", "", (), (), None) for k in range(1, stages))
    return Plan("", stages, method, "flops", "", batch, True, 0.0, "", "", 1, (), (), boundaries, 0.0, 0.0, 0.0, 0.0,
                "", ranks=ranks)  # fmt: skip


class _Needs:
    """Dependencies between the instructions of one micro-batch."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.M = schedule, schedule.micro
        self.made: dict[tuple[int, Ref], Node] = {}
        self.sent: dict[tuple[int, Ref], Node] = {}
        self.filled: dict[tuple[str, int, int], list[Node]] = defaultdict(list)
        for rank, items in enumerate(schedule.ranks):
            for at, item in enumerate(items):
                if item.op == "send":
                    self.sent[item.peer, self.key(item.ref)] = (rank, at)
                for ref in item.writes if item.op != "recv" else ():
                    self.made[rank, self.key(ref)] = (rank, at)
                self.filled[item.op, item.boundary, item.slot % self.M].append((rank, at))
        self.graphs = {buffers: self._graph(buffers) for buffers in (False, True)}

    def key(self, ref: Ref) -> Ref:
        return Ref(ref.kind, ref.boundary, ref.slot % self.M)

    def item(self, node: Node) -> Instruction:
        return self.schedule.ranks[node[0]][node[1]]

    def all(self, *ops: str) -> Iterator[tuple[Node, Instruction]]:
        for rank, items in enumerate(self.schedule.ranks):
            for at, item in enumerate(items):
                if item.op in ops:
                    yield (rank, at), item

    def of(self, node: Node, buffers: bool = False) -> set[Node]:
        """All that `node` needs; with `buffers` also through a replay buffer, for which nobody waits."""
        import networkx

        found: set[Node] = networkx.descendants(self.graphs[buffers], node)
        return found

    def _graph(self, buffers: bool) -> Any:
        """An edge from each instruction to every one that it needs directly."""
        import networkx

        graph: Any = networkx.DiGraph()
        for rank, items in enumerate(self.schedule.ranks):
            for node in ((rank, at) for at in range(len(items))):
                graph.add_node(node)
                graph.add_edges_from((node, other) for other in self._direct(node, buffers))
        return graph

    def _direct(self, node: Node, buffers: bool) -> Iterator[Node]:
        rank, item = node[0], self.item(node)
        if item.op == "wait":
            yield self.sent[rank, self.key(item.ref)]
        for ref in item.reads if item.op not in STEPWISE else ():
            yield self.made[rank, self.key(ref)]
        if buffers and item.op in BUFFERS:
            yield from self.filled[BUFFERS[item.op], item.boundary, item.slot % self.M]

    def others(self, node: Node, *ops: str, buffers: bool = False) -> list[Node]:
        """The instructions of that kind on other ranks that `node` needs, by rank."""
        return sorted(n for n in self.of(node, buffers) if n[0] != node[0] and self.item(n).op in ops)


def _solution(schedule: Schedule) -> Mark:
    own = [r for r, items in enumerate(schedule.ranks[:-1]) if any(i.op in LOCAL_LOSS for i in items)]
    if own:
        return Mark(False, f"rank {own[0]} learns from a loss of its own")
    return Mark(True, "the only loss is the model's, on the last rank")


def _forward(needs: _Needs) -> Mark:
    for node, _ in needs.all("forward"):
        if found := needs.others(node, "forward"):
            return Mark(False, f"rank {node[0]}'s forward waits for rank {found[-1][0]}'s of the same micro-batch")
    return Mark(True, "no forward waits for another rank's of the same micro-batch")


def _independent(needs: _Needs) -> Mark:
    for node, _ in needs.all("forward"):
        if found := needs.others(node, "forward", buffers=True):
            how = "" if needs.others(node, "forward") else ", through a buffer"
            return Mark(False, f"rank {node[0]}'s forward starts from what rank {found[-1][0]}'s forward made{how}")
    made = sorted({needs.item(n).op for node, _ in needs.all("forward") for n in needs.of(node)} - {"send", "wait"})
    return Mark(True, f"forwards start from the model's input or from what {' and '.join(made) or 'nobody'} made")


def _backward(needs: _Needs) -> Mark:
    """Locked if a rank's backwards of a step need all backwards of another rank in that step."""
    slots: dict[int, set[int]] = defaultdict(set)
    together: dict[tuple[int, int], set[int]] = {}
    for node, item in needs.all(*BACKWARD):
        slots[node[0]].add(item.slot)
        for other in needs.others(node, *BACKWARD):
            same = together.setdefault((node[0], other[0]), set())
            if needs.item(other).slot == item.slot:
                same.add(item.slot)
    for (rank, above), same in together.items():
        if same >= slots[above]:
            return Mark(False, f"rank {rank}'s backward waits for rank {above}'s in the same step")
    if not together:
        return Mark(True, "no backward needs another rank's")
    behind, rank, above = min((max(slots[b]) - max(slots[a]), a, b) for a, b in together)
    return Mark(True, f"rank {rank} goes back through a micro-batch {_slots(behind)} after rank {above} did")


def _update(needs: _Needs) -> Mark:
    """Locked if a step's gradients need the forward of its whole mini-batch, slots 0 to M - 1, on a later rank.

    Only the model's weights count, as in the paper; AuxNets do not.
    """
    M = needs.M
    needed: dict[tuple[int, int], set[int]] = defaultdict(set)
    for node, item in needs.all(*BACKWARD):
        steps = [at for at, i in enumerate(needs.schedule.ranks[node[0]]) if i.op == "step"]
        slot = item.slot if steps and node[1] < steps[-1] else item.slot - M  # else the next step applies it
        for other in needs.others(node, "forward"):
            if other[0] > node[0]:
                needed[node[0], other[0]].add(slot)
    for (rank, later), found in needed.items():
        if found >= set(range(M)):
            return Mark(False, f"rank {rank}'s step needs rank {later}'s forward of the whole mini-batch")
    if not needed:
        return Mark(True, "no gradient needs a later rank's forward")
    newest, rank, later = max((max(found), rank, later) for (rank, later), found in needed.items())
    late = M - 1 - newest
    return Mark(True, f"rank {rank}'s step needs rank {later}'s forward only of micro-batches {_slots(late)} ago")


def _memory(schedule: Schedule) -> Mark:
    for rank, items in enumerate(schedule.ranks):
        for item in items:
            kept = "κ of every sample" if item.op == "kappa" and not item.reads else STORES.get(item.op)
            if kept:
                return Mark(True, f"rank {rank} keeps {kept}")
    several = [found for found in _alive(schedule) if found[0] > 1]
    if several:
        most, rank, ref = max(several, key=lambda found: (found[2].kind in TOLD, found[0], -found[1]))
        what = TOLD.get(ref.kind) or str(Ref(ref.kind, ref.boundary, 0))
        return Mark(True, f"rank {rank} keeps {what} of {most} micro-batches at a time")
    return Mark(False, "each rank keeps one micro-batch at a time")


def _alive(schedule: Schedule) -> Iterator[tuple[int, int, Ref]]:
    """For each rank and kind of tensor at a boundary: the largest number of micro-batches alive at once."""
    M = schedule.micro
    for rank, items in enumerate(schedule.ranks):
        length = len(items)
        first: dict[Ref, int] = {}
        last: dict[Ref, int] = {}
        for at, item in enumerate(items):
            step, position = moment(item, at, M)
            when = step * length + position
            for ref in (*item.writes, *item.reads) if item.op not in STEPWISE and item.op != "recv" else ():
                key = Ref(ref.kind, ref.boundary, ref.slot % M)
                first[key] = min(first.get(key, when), when)
                last[key] = max(last.get(key, when), when)
        for kind, boundary in {(k.kind, k.boundary) for k in first}:
            spans = [(first[k], last[k]) for k in first if (k.kind, k.boundary) == (kind, boundary)]
            most = max(sum((now - a) // length - (now - b - 1) // length for a, b in spans) for now, _ in spans)
            yield most, rank, Ref(kind, boundary, 0)


def _network(schedule: Schedule) -> Mark:
    for rank, items in enumerate(schedule.ranks):
        for item in items:
            learns = "networks of κ" if item.op == "kappa" and item.reads else NETWORKS.get(item.op)
            if learns:
                return Mark(True, f"rank {rank} trains {learns}")
    return Mark(False, "nothing but the model learns")


def _slots(count: int) -> str:
    return f"{count} slot{'s' if count != 1 else ''}"
