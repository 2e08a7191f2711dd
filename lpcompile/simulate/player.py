"""The player of schedules: every rank has a clock, and the rank that is furthest behind goes next."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

from lpcompile.core.schedule import COLLECTIVE, STEPWISE, Schedule
from lpcompile.errors import ScheduleError
from lpcompile.simulate.interconnect import Interconnect
from lpcompile.simulate.op_costs import InstructionCosts

MAX_LEAD = 100  # a rank that waits for nobody stops after this many times the steps of the others
KEPT_STEPS = 4  # last steps whose events are kept


class PlayedEvent(NamedTuple):
    """An instruction that took time on a rank, from `begin` to `end` in ms. Kinds: compute, wait, message, average."""

    rank: int
    step: int
    name: str
    kind: str
    begin: float
    end: float


MICRO_BATCHES = 1 << 40  # the key of a message is one number: its channel times this, plus its micro-batch


class PlayedLine(NamedTuple):
    """An instruction prepared for the player."""

    act: str  # compute, send, recv, wait, meet, average, offer, draw
    play: Callable[[Player, int, PlayedLine, int], bool]
    name: str
    slot: int  # for a collective: its number within the step
    once: bool  # per step, not per micro-batch
    key: int
    link: tuple[int, int]
    cost: float
    size: float


class Player:
    """Plays steps of training, from the first; `run` can be called again for more."""

    def __init__(self, schedule: Schedule, costs: InstructionCosts, network: Interconnect) -> None:
        self.M, K = schedule.micro, schedule.K
        self.network, self.unknown = network, set[str]()
        self.keeps = 1 - network.device.overlap  # share of a transfer during which both sides are busy
        self.channels: dict[tuple[str, int, int], int] = {}  # numbers of (kind, boundary, receiver)
        self.lines = [self._lines(schedule, costs, rank) for rank in range(K)]
        self.clock, self.at, self.step = [0.0] * K, [0] * K, [0] * K
        self.busy = [0.0] * K
        self.ends: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in range(K)]  # clock and busy after each step
        # Plain tuples: hundreds of thousands of event objects would burden the garbage collector.
        self.shown: list[deque[list[tuple[int, int, str, str, float, float]]]]
        self.shown = [deque([[]], maxlen=KEPT_STEPS) for _ in range(K)]
        self.sent: dict[int, tuple[float, tuple[int, int], float]] = {}
        self.posted: dict[int, float] = {}
        self.there: dict[int, tuple[float, float]] = {}  # arrival and duration of transfers
        self.blocked: dict[int, int] = {}
        self.free: dict[tuple[int, int], float] = defaultdict(float)  # links, by direction
        self.met: dict[tuple[int, int], list[int]] = defaultdict(list)  # by step and number of the collective in it
        self.over: dict[tuple[int, int], float] = {}
        self.heap = [(0.0, r) for r in range(K)]
        self.ahead: list[int] = []  # ranks that have reached MAX_LEAD

    def _lines(self, schedule: Schedule, costs: InstructionCosts, rank: int) -> list[PlayedLine]:
        found: list[PlayedLine] = []
        stages = schedule.stages_of(rank)
        for item in schedule.ranks[rank]:
            cost, key, size, act, to = costs.of(stages, item), 0, 0.0, "compute", rank
            if item.op in ("send", "recv", "wait", "offer", "draw"):
                (kind, boundary, _), act = item.ref, item.op
                size = costs.message(kind, boundary)
                if item.op in ("send", "offer"):
                    to, cost = item.peer, self.network.transfer(rank, item.peer, size)
                key = MICRO_BATCHES * self.channels.setdefault((kind, boundary, to), len(self.channels))
            elif item.op in COLLECTIVE:
                act, cost = "meet", self.network.meeting()
            elif item.op == "average":
                act, cost = "average", self.network.average(costs.weight(stages))
            if cost is None:
                self.unknown.add(item.op)
            slot = sum(line.act == "meet" for line in found) if act == "meet" else item.slot
            once, play = item.op in STEPWISE, getattr(type(self), f"_{act}")
            found.append(PlayedLine(act, play, str(item), slot, once, key, (rank, to), cost or 0.0, size))
        return found

    @property
    def events(self) -> tuple[PlayedEvent, ...]:
        """Events of the last few steps, rank by rank."""
        return tuple(PlayedEvent(*event) for rank in self.shown for step in rank for event in step)

    def length(self, rank: int, steps: int, back: int = 0) -> float:
        ends = self.ends[rank]
        last = len(ends) - 1 - back
        return (ends[last][0] - ends[last - steps][0]) / steps

    def busy_time(self, rank: int, steps: int) -> float:
        ends = self.ends[rank]
        return (ends[-1][1] - ends[-1 - steps][1]) / steps

    def run(self, target: int) -> None:
        """Play until every rank has done `target` steps; a rank that has goes on while others need it."""
        heap, clock, far = self.heap, self.clock, MAX_LEAD * target
        while self.ahead:
            rank = self.ahead.pop()
            heapq.heappush(heap, (clock[rank], rank))
        behind = sum(step < target for step in self.step)
        while behind:
            if not heap:
                waiting = ", ".join(map(str, sorted(set(self.blocked.values()))))
                raise ScheduleError(f"ranks {waiting} wait for what never comes; the schedule was not verified")
            _, rank = heapq.heappop(heap)
            lines, at, first = self.lines[rank], self.at[rank], self.step[rank] * self.M
            while True:
                line = lines[at]
                slot = first + line.slot
                if (slot >= 0 or line.once) and not line.play(self, rank, line, slot):
                    break
                at += 1
                if at == len(lines):
                    at, first = 0, first + self.M
                    self._end(rank)
                    behind -= self.step[rank] == target
                    if self.step[rank] > far:
                        self.ahead.append(rank)
                        break
                if not behind or (heap and heap[0][0] < clock[rank]):
                    heapq.heappush(heap, (clock[rank], rank))
                    break
            self.at[rank] = at

    def _end(self, rank: int) -> None:
        self.step[rank] += 1
        self.ends[rank].append((self.clock[rank], self.busy[rank]))
        self.shown[rank].append([])

    # One method for each `act`: plays an instruction, or returns False if it has to wait for another rank.

    def _compute(self, rank: int, line: PlayedLine, slot: int) -> bool:
        self._advance(rank, line.name, "compute", self.clock[rank] + line.cost, line.cost)
        return True

    def _average(self, rank: int, line: PlayedLine, slot: int) -> bool:
        self._advance(rank, line.name, "average", self.clock[rank] + line.cost, 0.0)
        return True

    def _send(self, rank: int, line: PlayedLine, slot: int) -> bool:
        now, kept = self.clock[rank], self.keeps * line.cost
        self._advance(rank, line.name, "message", now + kept, kept)
        key = line.key + slot
        self.sent[key] = (now, line.link, line.cost)
        if key in self.posted:
            self._transfer(key)
        return True

    def _recv(self, rank: int, line: PlayedLine, slot: int) -> bool:
        key = line.key + slot
        self.posted[key] = self.clock[rank]
        if key in self.sent:
            self._transfer(key)
        return True

    def _offer(self, rank: int, line: PlayedLine, slot: int) -> bool:
        key = line.key
        self.there.setdefault(key, (self.clock[rank] + line.cost, 0.0))
        self._wake(key)
        return True

    def _wait(self, rank: int, line: PlayedLine, slot: int) -> bool:
        key = line.key + slot
        return self._arrived(rank, line, key, self.there.pop(key, None))

    def _draw(self, rank: int, line: PlayedLine, slot: int) -> bool:
        key = line.key
        return self._arrived(rank, line, key, self.there.get(key))

    def _arrived(self, rank: int, line: PlayedLine, key: int, found: tuple[float, float] | None) -> bool:
        if found is None:
            self.blocked[key] = rank
            return False
        now, kept = self.clock[rank], self.keeps * found[1]
        self._advance(rank, line.name, "wait", max(now + kept, found[0]), kept)
        return True

    def _transfer(self, key: int) -> None:
        """Start a transfer: both sides are ready."""
        (sent, link, cost), posted = self.sent.pop(key), self.posted.pop(key)
        end = max(sent, posted, self.free[link]) + cost
        self.free[link] = end
        self.there[key] = (end, cost)
        self._wake(key)

    def _wake(self, key: int) -> None:
        rank = self.blocked.pop(key, None)
        if rank is not None:
            heapq.heappush(self.heap, (self.clock[rank], rank))

    def _meet(self, rank: int, line: PlayedLine, slot: int) -> bool:
        """All ranks leave a collective together: the last one to come wakes the others."""
        at = (self.step[rank], line.slot)
        if at not in self.over:
            here = self.met[at]
            here.append(rank)
            if len(here) < len(self.lines):
                return False
            self.over[at] = max(self.clock[r] for r in here) + line.cost
            for r in here[:-1]:
                heapq.heappush(self.heap, (self.clock[r], r))
            del self.met[at]
        self._advance(rank, line.name, "wait", self.over[at], 0.0)
        return True

    def _advance(self, rank: int, name: str, kind: str, end: float, busy: float) -> None:
        begin = self.clock[rank]
        self.clock[rank] = end
        self.busy[rank] += busy
        if end > begin:
            self.shown[rank][-1].append((rank, self.step[rank], name, kind, begin, end))
