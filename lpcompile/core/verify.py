"""Proof that a schedule runs: every receive has its send, nothing is read before it is written, and no deadlock.

The schedule is periodic, so one step is examined, with time counted as in `core.schedule.moment`; nothing is unrolled.

Sends are rendezvous (they end when the receive is posted); receives are ordered for each pair of ranks and kind of
tensor, and for each lane of boundaries where ranks have several stages. A schedule that runs under these rules runs on
NCCL and gloo with any timing. An offer never waits. A draw waits for the first offer; which offer it gets is up to the
replay buffer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from lpcompile.core.schedule import COLLECTIVE, LOCAL, MESSAGES, OPS, STEPWISE, Instruction, Ref, Schedule, moment
from lpcompile.errors import ScheduleError

KINDS = frozenset(MESSAGES + LOCAL)
Class = tuple[str, int, int]  # kind, boundary, slot modulo M
Time = tuple[int, int]  # step relative to the micro-batch's, position in the list
Node = tuple[int, int]  # rank, position in its list
Channel = tuple[int, int, str, int]  # from rank, to rank, kind, boundary or lane


def verify(schedule: Schedule) -> None:
    """Raise `ScheduleError` with rank, instruction and what is wrong, unless the schedule runs to its end."""
    if len(schedule.ranks) != schedule.K or len(schedule.depth) != schedule.K or schedule.micro < 1:
        raise ScheduleError(f"{schedule.method}: {len(schedule.ranks)} lists for K = {schedule.K}; make it again")
    for rank, items in enumerate(schedule.ranks):
        for at, item in enumerate(items):
            _well_formed(schedule, rank, at, item)
    times = [_Times(schedule, rank) for rank in range(schedule.K)]
    for t in times:
        t.check()
        needed = buffers_needed(schedule, t.rank)
        if needed > schedule.depth[t.rank]:
            raise ScheduleError(
                f"rank {t.rank} has {schedule.depth[t.rank]} receive buffers in turn but needs {needed}: "
                f"a tensor would be overwritten while it is in use"
            )
    _messages(schedule, times)
    _offers(schedule)
    _collectives(schedule)
    _no_circle(schedule, times)


def buffers_needed(schedule: Schedule, rank: int) -> int:
    """The smallest number of buffers in turn with which no receive overwrites what is still to be read."""
    M, items = schedule.micro, schedule.ranks[rank]
    last: dict[Class, Time] = {}
    posts: dict[Class, Time] = {}
    for at, item in enumerate(items):
        if item.op == "recv":
            key, time = (item.ref.kind, item.ref.boundary, item.slot % M), moment(item, at, M)
            posts[key] = min(posts.get(key, time), time)
        for ref in item.reads if item.op not in STEPWISE else ():
            key, time = (ref.kind, ref.boundary, ref.slot % M), moment(ref, at, M)
            last[key] = max(last.get(key, time), time)
    depth = 1
    for kind, boundary in dict.fromkeys(key[:2] for key in posts):
        for c in range(M):
            end = last.get((kind, boundary, c))
            while end is not None and _overwritten(posts, (kind, boundary, c + depth), M, end):
                depth += 1
    return depth


def _overwritten(posts: dict[Class, Time], later: Class, M: int, end: Time) -> bool:
    """Whether the receive of a later micro-batch is posted before the last read of an earlier one."""
    kind, boundary, c = later
    posted = posts.get((kind, boundary, c % M))
    return posted is not None and (posted[0] + c // M, posted[1]) < end


def _where(schedule: Schedule, rank: int, at: int) -> str:
    return f"rank {rank}, instruction {at} ({schedule.ranks[rank][at]})"


def _well_formed(schedule: Schedule, rank: int, at: int, item: Instruction) -> None:
    problem = ""
    if item.op not in OPS:
        problem = f"unknown; known are {', '.join(OPS)}"
    elif item.op in ("send", "recv", "wait", "offer", "draw") and len(item.reads) + len(item.writes) != 1:
        problem = "a message is one tensor"
    elif item.op in ("send", "recv", "offer", "draw") and (not 0 <= item.peer < schedule.K or item.peer == rank):
        problem = f"{item.peer} is no other rank of {schedule.K}"
    elif item.op in ("send", "recv", "wait", "offer", "draw") and item.ref.kind not in MESSAGES:
        problem = f"{item.ref.kind!r} does not travel; {', '.join(MESSAGES)} do"
    elif any(ref.kind not in KINDS for ref in (*item.reads, *item.writes)):
        problem = "it names a kind of tensor that does not exist"
    elif any(ref.slot != item.slot for ref in (*item.reads, *item.writes)):
        problem = f"it belongs to micro-batch {item.slot} but names one of another"
    if problem:
        raise ScheduleError(f"{_where(schedule, rank, at)}: {problem}")


class _Times:
    """When each tensor of a rank is posted, there, and read."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        self.schedule, self.rank, self.M = schedule, rank, schedule.micro
        self.made: dict[Class, Time] = {}
        self.posted: dict[Class, Time] = {}
        self.sent: dict[tuple[Class, int], Time] = {}
        for at, item in enumerate(schedule.ranks[rank]):
            if item.op not in STEPWISE:
                self._add(at, item)

    def _add(self, at: int, item: Instruction) -> None:
        time = moment(item, at, self.M)
        if item.op == "send":
            key = (self.key(item.ref), item.peer)
            if key in self.sent:
                raise ScheduleError(f"{self.where(at)}: {item.ref} is sent to {item.peer} twice")
            self.sent[key] = time
        table = self.posted if item.op == "recv" else self.made
        for ref in item.writes:
            if self.key(ref) in table:
                what = "received" if item.op in ("recv", "wait") else "made"
                raise ScheduleError(f"{self.where(at)}: {ref} is {what} twice")
            table[self.key(ref)] = time

    def key(self, ref: Ref) -> Class:
        return (ref.kind, ref.boundary, ref.slot % self.M)

    def where(self, at: int) -> str:
        return _where(self.schedule, self.rank, at)

    def check(self) -> None:
        """Waits come after posts, reads after writes, and no receive is left without a wait."""
        waited = set()
        for at, item in enumerate(self.schedule.ranks[self.rank]):
            if item.op in STEPWISE:
                continue
            time = moment(item, at, self.M)
            if item.op == "wait":
                waited.add(self.key(item.ref))
                if self.posted.get(self.key(item.ref), (10**9, 0)) > time:
                    raise ScheduleError(f"{self.where(at)}: the receive is not posted before the wait")
            for ref in item.reads:
                if self.key(ref) not in self.made:
                    raise ScheduleError(f"{self.where(at)}: {ref} is never made or received on this rank")
                if self.made[self.key(ref)] > time:
                    raise ScheduleError(f"{self.where(at)}: {ref} is used before it is there")
        for key, (_, at) in self.posted.items():
            if key not in waited:
                raise ScheduleError(f"{self.where(at)}: the receive is never waited for")


def _messages(schedule: Schedule, times: list[_Times]) -> None:
    """One send for each receive and one receive for each send, in the same order on both sides."""
    sends: dict[Channel, list[tuple[Class, Time]]] = defaultdict(list)
    receives: dict[Channel, list[tuple[Class, Time]]] = defaultdict(list)
    for t in times:
        for (key, peer), time in t.sent.items():
            sends[t.rank, peer, key[0], schedule.lane(key[1])].append((key, time))
            if times[peer].posted.get(key) is None or _peer(schedule, peer, times[peer].posted[key]) != t.rank:
                raise ScheduleError(f"{t.where(time[1])}: rank {peer} has no receive for it")
        for key, time in t.posted.items():
            peer = _peer(schedule, t.rank, time)
            receives[peer, t.rank, key[0], schedule.lane(key[1])].append((key, time))
            if (key, t.rank) not in times[peer].sent:
                raise ScheduleError(f"{t.where(time[1])}: rank {peer} has no send for it")
    for channel, sent in sends.items():
        source, target, kind, _ = channel
        left = _order(sent, len(schedule.ranks[source]))
        right = _order(receives[channel], len(schedule.ranks[target]))
        for (a, i), (b, j) in zip(left, right, strict=True):
            if (a, i) != (b, j):
                at = times[target].posted[b][1]
                raise ScheduleError(
                    f"{times[target].where(at)}: rank {source} sends {kind} to rank {target} in another order"
                )


def _offers(schedule: Schedule) -> None:
    """Every draw has an offer, and every offer has a draw."""
    ends: dict[str, dict[Channel, Node]] = {"offer": {}, "draw": {}}
    for rank, items in enumerate(schedule.ranks):
        for at, item in enumerate(items):
            if item.op in ends:
                pair = (rank, item.peer) if item.op == "offer" else (item.peer, rank)
                ends[item.op].setdefault((*pair, item.ref.kind, item.ref.boundary), (rank, at))
    for op, other in (("draw", "offer"), ("offer", "draw")):
        for channel, where in ends[op].items():
            if channel not in ends[other]:
                peer = channel[0] if op == "draw" else channel[1]
                raise ScheduleError(f"{_where(schedule, *where)}: rank {peer} has no {other} for it")


def _peer(schedule: Schedule, rank: int, time: Time) -> int:
    return schedule.ranks[rank][time[1]].peer


def _order(events: list[tuple[Class, Time]], length: int) -> list[tuple[Class, int]]:
    """The messages of one period in order, each as (class, number of periods that its micro-batch is shifted by)."""
    line = {key: step * length + at for key, (step, at) in events}
    first = min(line)
    found = []
    for key, at in line.items():
        periods = (at - line[first]) // length  # bring it into the window of one period after the first
        found.append((at - line[first] - periods * length, key, -periods))
    return [(key, periods) for _, key, periods in sorted(found)]


def _collectives(schedule: Schedule) -> None:
    """All ranks meet in the same collectives in the same order."""
    names = [[i.op for i in rank if i.op in COLLECTIVE] for rank in schedule.ranks]
    for rank, found in enumerate(names):
        if found != names[0]:
            raise ScheduleError(
                f"rank {rank} meets the others in {found}, rank 0 in {names[0]}: one of them would hang"
            )


def _no_circle(schedule: Schedule, times: list[_Times]) -> None:
    """Sort the instructions of a step topologically; where that fails, name the cycle of waits.

    By hand, since every plan of a sweep is verified: for 64 stages and 128 micro-batches of 1F1B networkx took twice
    as long."""
    after, count = _edges(schedule, times)
    ready = [node for node, n in count.items() if n == 0]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        for following in after[node]:
            count[following] -= 1
            if count[following] == 0:
                ready.append(following)
    if done < len(count):
        rank, at = min(node for node, n in count.items() if n > 0 and node[0] >= 0)
        circle = _circle(schedule, after, {node for node, n in count.items() if n > 0})
        raise ScheduleError(f"{_where(schedule, rank, at)} waits in a circle: the ranks would hang. {circle}")


def _circle(schedule: Schedule, after: dict[Node, list[Node]], stuck: set[Node]) -> str:
    """One cycle, reduced to the instructions at which it passes from one rank to another."""
    import networkx as nx

    graph = nx.DiGraph((a, b) for a in stuck for b in after[a] if b in stuck)
    edges = [(a, b) for a, b in nx.find_cycle(graph) if a[0] != b[0]]
    return "The circle: " + "; ".join(f"{_name(schedule, b)} waits for {_name(schedule, a)}" for a, b in edges)


def _name(schedule: Schedule, node: Node) -> str:
    return "a collective of all ranks" if node[0] < 0 else _where(schedule, *node)


def _edges(schedule: Schedule, times: list[_Times]) -> tuple[dict[Node, list[Node]], dict[Node, int]]:
    """Which instruction must be over before which, within a step. Collectives are one node for all ranks: rank -1."""
    after: dict[Node, list[Node]] = defaultdict(list)
    count: dict[Node, int] = defaultdict(int)
    for rank, items in enumerate(schedule.ranks):
        met, before = 0, None
        for at, item in enumerate(items):
            node = (rank, at)
            if item.op in COLLECTIVE:
                node, met = (-1, met), met + 1
            count[node] += 0
            if before is not None:
                after[before].append(node)
                count[node] += 1
            before = node
    for earlier, later, periods in _waits(schedule, times):
        if periods < 0:
            raise ScheduleError(f"{_where(schedule, *later)} waits for {_where(schedule, *earlier)} of a later step")
        if periods == 0:
            after[earlier].append(later)
            count[later] += 1
    return after, count


def _waits(schedule: Schedule, times: list[_Times]) -> Iterator[tuple[Node, Node, int]]:
    """Pairs (what must be over, what waits for it, how many steps earlier the first one is)."""
    for t in times:
        for key, (step, at) in t.posted.items():
            source = _peer(schedule, t.rank, (step, at))
            sent = times[source].sent[key, t.rank]
            waited = t.made[key]
            yield (source, sent[1]), (t.rank, waited[1]), waited[0] - sent[0]
            yield (t.rank, at), (source, sent[1]), sent[0] - step
    for rank, items in enumerate(schedule.ranks):
        for at, item in enumerate(items):
            if item.op == "draw":
                begin, first = _first_offer(schedule, item.peer, rank, item.ref)
                yield (item.peer, first), (rank, at), _begins(schedule, item) - begin


def _begins(schedule: Schedule, item: Instruction) -> int:
    """The step in which an instruction is met first: there is no micro-batch before number 0."""
    return max(0, -(item.slot // schedule.micro))


def _first_offer(schedule: Schedule, source: int, target: int, ref: Ref) -> tuple[int, int]:
    """When a boundary's first tensor is offered: step and position. Any draw may have to wait for it."""
    return min(
        (_begins(schedule, item), at)
        for at, item in enumerate(schedule.ranks[source])
        if (item.op, item.peer) == ("offer", target) and (item.ref.kind, item.ref.boundary) == (ref.kind, ref.boundary)
    )
