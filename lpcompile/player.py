"""The player of schedules: every rank has a clock, and the one whose clock is behind goes next."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from typing import NamedTuple

from lpcompile.errors import ScheduleError
from lpcompile.network import Network
from lpcompile.op_costs import Costs
from lpcompile.schedule import COLLECTIVE, STEPWISE, Schedule

FAR = 100  # times as many steps as the others need: a rank that has nobody to wait for
SHOWN = 4  # steps whose events are kept


class Event(NamedTuple):
    """What a rank did from `begin` to `end`, in ms. Kinds: compute, wait, message, average."""

    rank: int
    step: int
    name: str
    kind: str
    begin: float
    end: float


class _Line(NamedTuple):
    """An instruction ready to be played."""

    act: str  # compute, send, recv, wait, meet, average, offer, draw
    name: str
    slot: int  # of a collective: which of the step's it is
    once: bool  # a step, whatever micro-batches there are
    key: tuple[str, int]
    peer: int
    cost: float
    size: float


class Player:
    """Plays the steps of training one after another; `run` may be called again for more of them."""

    def __init__(self, schedule: Schedule, costs: Costs, network: Network) -> None:
        self.M, K = schedule.micro, schedule.K
        self.network, self.unknown = network, set[str]()
        self.keeps = 1 - network.device.overlap  # share of a transfer that both sides are busy with
        self.lines = [self._lines(schedule, costs, rank) for rank in range(K)]
        self.clock, self.at, self.step = [0.0] * K, [0] * K, [0] * K
        self.busy = [0.0] * K
        self.ends: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in range(K)]  # clock and busy after each step
        self.events: list[deque[list[Event]]] = [deque([[]], maxlen=SHOWN) for _ in range(K)]
        self.sent: dict[tuple[str, int, int, int], tuple[float, int, float]] = {}
        self.posted: dict[tuple[str, int, int, int], float] = {}
        self.there: dict[tuple[str, int, int, int], tuple[float, float]] = {}  # when, and how long it took
        self.blocked: dict[tuple[str, int, int, int], int] = {}
        self.free: dict[tuple[int, int], float] = defaultdict(float)  # links, by direction
        self.met: dict[tuple[int, int], list[int]] = defaultdict(list)  # by step and number of the collective in it
        self.over: dict[tuple[int, int], float] = {}
        self.heap = [(0.0, r) for r in range(K)]

    def _lines(self, schedule: Schedule, costs: Costs, rank: int) -> list[_Line]:
        found: list[_Line] = []
        for item in schedule.ranks[rank]:
            cost, key, size, act = costs.of(rank, item), ("", 0), 0.0, "compute"
            if item.op in ("send", "recv", "wait", "offer", "draw"):
                key, act = (item.ref.kind, item.ref.boundary), item.op
                size = costs.message(*key)
                if item.op in ("send", "offer"):
                    cost = self.network.transfer(rank, item.peer, size)
            elif item.op in COLLECTIVE:
                act, cost = "meet", self.network.meeting()
            elif item.op == "average":
                act, cost = "average", self.network.average(costs.parameters[rank])
            if cost is None:
                self.unknown.add(item.op)
            slot = sum(line.act == "meet" for line in found) if act == "meet" else item.slot
            found.append(_Line(act, str(item), slot, item.op in STEPWISE, key, item.peer, cost or 0.0, size))
        return found

    def length(self, rank: int, steps: int, back: int = 0) -> float:
        ends = self.ends[rank]
        last = len(ends) - 1 - back
        return (ends[last][0] - ends[last - steps][0]) / steps

    def busy_time(self, rank: int, steps: int) -> float:
        ends = self.ends[rank]
        return (ends[-1][1] - ends[-1 - steps][1]) / steps

    def run(self, target: int) -> None:
        """Until every rank has done so many steps; those that have go on while others need them."""
        behind = sum(step < target for step in self.step)
        while behind:
            if not self.heap or max(self.step) > FAR * target:
                waiting = ", ".join(map(str, sorted(set(self.blocked.values()))))
                raise ScheduleError(f"ranks {waiting} wait for what never comes; the schedule was not verified")
            _, rank = heapq.heappop(self.heap)
            lines = self.lines[rank]
            while True:
                if not self._do(rank, lines[self.at[rank]]):
                    break
                self.at[rank] += 1
                if self.at[rank] == len(lines):
                    self.at[rank], self.step[rank] = 0, self.step[rank] + 1
                    self.ends[rank].append((self.clock[rank], self.busy[rank]))
                    self.events[rank].append([])
                    behind -= self.step[rank] == target
                if self.heap and self.heap[0][0] < self.clock[rank]:
                    heapq.heappush(self.heap, (self.clock[rank], rank))
                    break
                if not behind or self.step[rank] > FAR * target:
                    heapq.heappush(self.heap, (self.clock[rank], rank))
                    break

    def _do(self, rank: int, line: _Line) -> bool:
        """One instruction; False if it has to wait for another rank."""
        slot = self.step[rank] * self.M + line.slot
        if slot < 0 and not line.once:
            return True
        now, act = self.clock[rank], line.act
        if act in ("compute", "average"):
            self._advance(rank, line.name, act, now, now + line.cost, line.cost if act == "compute" else 0.0)
        elif act == "send":
            kept = self.keeps * line.cost
            self._advance(rank, line.name, "message", now, now + kept, kept)
            key = (*line.key, slot, line.peer)
            self.sent[key] = (now, rank, line.cost)
            if key in self.posted:
                self._transfer(key)
        elif act == "recv":
            key = (*line.key, slot, rank)
            self.posted[key] = now
            if key in self.sent:
                self._transfer(key)
        elif act == "offer":
            key = (*line.key, 0, line.peer)
            self.there.setdefault(key, (now + line.cost, 0.0))
            self._wake(key)
        elif act == "meet":
            return self._meet(rank, line)
        else:
            return self._wait(rank, line, slot)
        return True

    def _wait(self, rank: int, line: _Line, slot: int) -> bool:
        draws = line.act == "draw"
        key = (*line.key, 0 if draws else slot, rank)
        found = self.there.get(key)
        if found is None:
            self.blocked[key] = rank
            return False
        if not draws:
            del self.there[key]
        begin, kept = self.clock[rank], self.keeps * found[1]
        self._advance(rank, line.name, "wait", begin, max(begin + kept, found[0]), kept)
        return True

    def _transfer(self, key: tuple[str, int, int, int]) -> None:
        """Both sides are ready."""
        (sent, rank, cost), posted = self.sent.pop(key), self.posted.pop(key)
        link = (rank, key[3])
        end = max(sent, posted, self.free[link]) + cost
        self.free[link] = end
        self.there[key] = (end, cost)
        self._wake(key)

    def _wake(self, key: tuple[str, int, int, int]) -> None:
        rank = self.blocked.pop(key, None)
        if rank is not None:
            heapq.heappush(self.heap, (self.clock[rank], rank))

    def _meet(self, rank: int, line: _Line) -> bool:
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
        self._advance(rank, line.name, "wait", self.clock[rank], self.over[at], 0.0)
        return True

    def _advance(self, rank: int, name: str, kind: str, begin: float, end: float, busy: float) -> None:
        self.clock[rank] = end
        self.busy[rank] += busy
        if end > begin:
            self.events[rank][-1].append(Event(rank, self.step[rank], name, kind, begin, end))
