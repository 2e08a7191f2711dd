"""The critical path of a step: which instructions and messages make it as long as it is, and what would shorten it.

>>> path = critical_path(schedule, costs, network)
>>> [(part.rank, part.what, part.share) for part in path.parts]
[(1, "backward", 0.61), (1, "AuxNet", 0.12), ...]

The player is run once more and every dependency is recorded. A node of the graph is the end of an instruction or of
a transfer, an edge is the time that must pass between two of them:

    rank:      its previous instruction  ── own cost ──▶  instruction
    transfer:  send, posted receive, the link's previous transfer  ── transfer time ──▶  transfer  ── 0 ──▶  wait
    meeting:   every rank's last instruction  ── cost of the collective ──▶  meeting  ── 0 ──▶  every rank

A node's time is the longest path to it. The longest path to the end of the slowest rank's last step therefore has no
gap, from the first step of training to the last. In the steady state it repeats: it comes back to the same
instruction some steps later (more than one where the path follows a micro-batch through several steps). The stretch
between two such visits is the critical cycle. Its length divided by its number of steps is the step time, and no
change elsewhere makes the step shorter.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from lpcompile.core.schedule import Schedule
from lpcompile.core.system.gc_pause import gc_paused
from lpcompile.simulate.interconnect import Interconnect
from lpcompile.simulate.op_costs import InstructionCosts
from lpcompile.simulate.player import MICRO_BATCHES, PlayedLine, Player
from lpcompile.simulate.step import run_until_steady

if TYPE_CHECKING:
    import networkx as nx

MESSAGE = "message"
AUXNET = "AuxNet"
AVERAGE = "averaging of gradients"
STAGE = ("forward", "replay", "backward")
WHAT = {
    "backward_input": "backward",
    "backward_weight": "backward",
    "aux_forward": AUXNET,
    "distil": AUXNET,
    "penalize": "penalty",
    "correct": "penalty",
    "recall": "store of λ",
    "store": "store of λ",
    "kappa": "κ",
    "multiply": "κ",
    "stash": "stash of weights",
    "predict": "prediction of weights",
    "tied": "collective",
    "norm": "collective",
    "average": AVERAGE,
    "step": "optimizer step",
    "send": MESSAGE,
    "wait": MESSAGE,
    "draw": MESSAGE,
}
TOLERANCE = 1e-3  # relative, between a cycle's time per step and the step time


@dataclass(frozen=True)
class PathPart:
    """What one rank (or the link from `rank` to `peer`) contributes to the critical path of a step."""

    rank: int
    peer: int  # of a message; -1 for what a rank computes
    what: str
    ms: float
    share: float

    def __str__(self) -> str:
        if self.peer >= 0:
            return f"the message from rank {self.rank} to rank {self.peer}"
        return f"rank {self.rank}'s {self.what}" if self.rank >= 0 else f"the {self.what} of all ranks"


@dataclass(frozen=True)
class CriticalPath:
    """The parts of one steady step, longest first; `steps`: how many steps the cycle takes before it repeats."""

    ms: float
    steps: int
    parts: tuple[PathPart, ...]

    def of(self, *what: str) -> list[PathPart]:
        return [part for part in self.parts if part.what in what]


def total(parts: Sequence[PathPart]) -> float:
    """ms of these parts together."""
    return sum(part.ms for part in parts)


class _Node(NamedTuple):
    """The end of an instruction or of a transfer. `place` is the same for the same instruction of every step."""

    place: tuple[int, ...]
    step: int
    rank: int
    peer: int
    what: str


class TracedPlayer(Player):
    """A player that records what every instruction and every transfer depends on."""

    def __init__(self, schedule: Schedule, costs: InstructionCosts, network: Interconnect) -> None:
        import networkx as nx

        super().__init__(schedule, costs, network)
        self.graph: nx.DiGraph[int] = nx.DiGraph()
        self.nodes: list[_Node] = []
        self.played = [0] * schedule.K  # instructions of the current step, by rank
        self.latest = [self._node(_Node((rank, -1), -1, rank, -1, "start")) for rank in range(schedule.K)]
        self.senders: dict[int, int] = {}
        self.receivers: dict[int, int] = {}
        self.carried: dict[int, int] = {}
        self.on_link: dict[tuple[int, int], int] = {}
        self.meetings: dict[tuple[int, int], int] = {}

    def _node(self, node: _Node) -> int:
        self.nodes.append(node)
        self.graph.add_node(len(self.nodes) - 1)
        return len(self.nodes) - 1

    def _after(self, before: int, node: int, ms: float) -> None:
        self.graph.add_edge(before, node, ms=ms)

    def _end(self, rank: int) -> None:
        super()._end(rank)
        self.played[rank] = 0

    def _advance(self, rank: int, name: str, kind: str, end: float, busy: float) -> None:
        cost = end - self.clock[rank] if kind == "average" else busy  # a wait takes what keeps its rank busy
        op = name.split(" ")[0]
        node = self._node(_Node((rank, self.played[rank]), self.step[rank], rank, -1, WHAT.get(op, op)))
        self._after(self.latest[rank], node, cost)
        self.latest[rank] = node
        self.played[rank] += 1
        super()._advance(rank, name, kind, end, busy)

    def _send(self, rank: int, line: PlayedLine, slot: int) -> bool:
        self.senders[line.key + slot] = self.latest[rank]
        done = super()._send(rank, line, slot)
        self._of_link(self.latest[rank], line.link)
        return done

    def _recv(self, rank: int, line: PlayedLine, slot: int) -> bool:
        self.receivers[line.key + slot] = self.latest[rank]
        return super()._recv(rank, line, slot)

    def _offer(self, rank: int, line: PlayedLine, slot: int) -> bool:
        if line.key not in self.there:
            self._carry(line.key, line.key, line.link, line.cost, [self.latest[rank]])
        return super()._offer(rank, line, slot)

    def _transfer(self, key: int) -> None:
        _, link, cost = self.sent[key]
        before = [self.senders.pop(key), self.receivers.pop(key)]
        if link in self.on_link:
            before.append(self.on_link[link])
        self.on_link[link] = self._carry(key, key % MICRO_BATCHES, link, cost, before)
        super()._transfer(key)

    def _carry(self, key: int, slot: int, link: tuple[int, int], cost: float, before: Sequence[int]) -> int:
        place = (*link, key // MICRO_BATCHES, slot % self.M)
        node = self.carried[key] = self._node(_Node(place, slot // self.M, *link, MESSAGE))
        for one in before:
            self._after(one, node, cost)
        return node

    def _arrived(self, rank: int, line: PlayedLine, key: int, found: tuple[float, float] | None) -> bool:
        done = super()._arrived(rank, line, key, found)
        if done:
            message = self.carried[key]
            self._after(message, self.latest[rank], 0.0)
            self._of_link(self.latest[rank], (self.nodes[message].rank, self.nodes[message].peer))
        return done

    def _of_link(self, node: int, link: tuple[int, int]) -> None:
        """Time that a send or a wait keeps its rank busy is the link's."""
        self.nodes[node] = self.nodes[node]._replace(rank=link[0], peer=link[1])

    def _meet(self, rank: int, line: PlayedLine, slot: int) -> bool:
        at = (self.step[rank], line.slot)
        if at not in self.meetings:
            self.meetings[at] = self._node(_Node((-1, line.slot), self.step[rank], -1, -1, "collective"))
        if at not in self.over:
            self._after(self.latest[rank], self.meetings[at], line.cost)
        done = super()._meet(rank, line, slot)
        if done:
            self._after(self.meetings[at], self.latest[rank], 0.0)
        return done


@gc_paused()
def critical_path(schedule: Schedule, costs: InstructionCosts, network: Interconnect) -> CriticalPath:
    """The critical cycle of the steady state, per step; see the module's docstring."""
    import networkx as nx

    player = TracedPlayer(schedule, costs, network)
    window = run_until_steady(player, schedule)
    lengths = [player.length(rank, window) for rank in range(schedule.K)]
    step = max(lengths)
    end = player.latest[lengths.index(step)]
    graph = player.graph
    before = nx.ancestors(graph, end)
    graph.remove_nodes_from(set(graph) - before - {end})
    path = nx.dag_longest_path(graph, weight="ms")
    times = [0.0, *(graph.edges[edge]["ms"] for edge in nx.utils.pairwise(path))]
    first, last, steps = _cycle([player.nodes[node] for node in path], times, step)
    spent: dict[tuple[int, int, str], float] = defaultdict(float)
    for node, ms in zip(path[first + 1 : last + 1], times[first + 1 : last + 1], strict=True):
        found = player.nodes[node]
        spent[found.rank, found.peer, found.what] += ms / steps
    whole = sum(spent.values())
    parts = [PathPart(*key, ms, ms / whole) for key, ms in spent.items() if ms]
    return CriticalPath(whole, steps, tuple(sorted(parts, key=lambda part: -part.ms)))


def _cycle(path: Sequence[_Node], times: Sequence[float], step: float) -> tuple[int, int, int]:
    """The last stretch of the path that begins and ends at the same instruction and takes `step` ms per step: where
    it begins and ends, and how many steps it takes. Without an exact one, the stretch that comes closest."""
    reached, at = list[float](), 0.0
    for ms in times:
        at += ms
        reached.append(at)
    later: dict[tuple[int, ...], list[int]] = defaultdict(list)
    closest, found = float("inf"), (0, len(path) - 1, max(1, round(at / step)) if step else 1)
    for i in range(len(path) - 1, -1, -1):
        for j in later[path[i].place]:
            steps = path[j].step - path[i].step
            off = abs((reached[j] - reached[i]) / steps - step) if steps > 0 else float("inf")
            if off < closest:
                closest, found = off, (i, j, steps)
            if closest <= TOLERANCE * step:
                return found
        later[path[i].place].append(i)
    return found
