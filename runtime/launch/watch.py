"""Which rank hangs: one watchdog for all phases of a job, from the boards of all ranks.

A process that is stopped has no heartbeat, whatever it was doing; those that wait for it still have one. So the rank
that is named is the one that fell behind first. Time counts only while the watcher itself runs: a job that was
suspended as a whole (Ctrl-Z, a laptop's lid) goes on. Nor does time count in which a rank waits for a CPU: on a busy
machine it is late, and does not hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from lpcompile.runtime.launch import cpu
from lpcompile.runtime.launch.board import LOADING, RESTS, Board, Doing
from lpcompile.runtime.launch.cpu import Share

BEATS_PER_TIMEOUT = 8
SLOWEST_BEAT = 0.5  # seconds between two beats, at most
LONGEST_LOOK = 1.0  # seconds between two looks that count, at most
STARTING = 60.0  # seconds until a process, which imports torch, has its first beat
BUSY_SHARE = 0.1  # of the time: a rank that uses more of a CPU does something
NOISE = 0.05  # seconds of CPU time that an idle process may use
UNSUSPECTED = 0.25  # of the time-out, in which a rank without a new note is not looked at more closely


def interval(timeout: float) -> float:
    """Seconds between two beats, or two looks."""
    return min(SLOWEST_BEAT, timeout / BEATS_PER_TIMEOUT)


def heartbeat(board: Board, timeout: float, each: Callable[[], None] | None = None) -> None:
    """A thread that counts on the board until the process ends, and calls `each` after every beat."""

    def run() -> None:
        beats = 0
        while True:
            beats += 1
            used = time.process_time() - time.thread_time()
            board.beat(beats, used + (cpu.of_children() if board.now[1] == LOADING else 0.0))
            if each is not None:
                each()
            time.sleep(interval(timeout))

    threading.Thread(target=run, daemon=True, name="heartbeat").start()


@dataclass
class _Seen:
    """For how many seconds a rank has had no beat, no new note, and nothing to do."""

    last: Doing
    beatless: float = 0.0
    noteless: float = 0.0
    idle: float = 0.0
    cpu: float = 0.0  # when `idle` began

    def update(self, now: Doing, seconds: float, share: Share) -> None:
        """seconds: since the last look; share: what the rank had of them on a CPU, without which it cannot move."""
        seconds -= share.waited
        moved = now.number != self.last.number
        self.beatless = 0.0 if now.beats != self.last.beats else self.beatless + seconds - share.ran
        self.noteless = 0.0 if moved else self.noteless + seconds
        self.idle += seconds
        self.cpu = min(self.cpu, now.cpu)  # it may have been that of children, which are gone
        if moved or now.cpu - self.cpu > NOISE + BUSY_SHARE * self.idle:
            self.idle, self.cpu = 0.0, now.cpu
        self.last = now


class Watch:
    """Looks at the boards of all ranks from time to time.

    >>> watch = Watch(timeout=60)
    >>> watch.look({0: doing, 1: doing})        # the rank that hangs, or None

    share: how much of so many seconds a rank's process ran, and waited for a CPU; its board is given, too.
    """

    def __init__(self, timeout: float, share: Callable[[int, float, Doing], Share] = lambda *_: Share()) -> None:
        self.timeout, self.share = timeout, share
        self.seen: dict[int, _Seen] = {}
        self.looked = time.monotonic()

    def look(self, boards: Mapping[int, Doing], over: Collection[int] = ()) -> int | None:
        """The first rank to fall behind, once nothing was heard of it for the time-out. over: ranks that have ended."""
        now = time.monotonic()
        seconds, self.looked = min(now - self.looked, LONGEST_LOOK), now
        for rank, doing in boards.items():
            seen = self.seen.setdefault(rank, _Seen(doing))
            suspected = seen.noteless > UNSUSPECTED * self.timeout or seen.beatless > UNSUSPECTED * self.timeout
            seen.update(doing, seconds, self.share(rank, seconds, doing) if suspected else Share())
        live = {rank: seen for rank, seen in self.seen.items() if rank not in over}
        return self._hanging(live) if live else None

    def _hanging(self, live: Mapping[int, _Seen]) -> int | None:
        """First a process that is stopped, then a rank that is stuck by itself, then one in which nothing moves."""
        limit = {r: self.timeout if s.last.beats else max(self.timeout, STARTING) for r, s in live.items()}
        found = [r for r, s in live.items() if s.beatless > limit[r]]
        if found:
            return max(found, key=lambda r: live[r].beatless)
        stuck = [r for r, s in live.items() if self._stuck(s)]
        if not stuck and all(s.idle > self.timeout and s.last.mood != RESTS and s.last.beats for s in live.values()):
            stuck = list(live)
        if not stuck:
            return None
        silent = [r for r, s in live.items() if s.last.beats and s.beatless > max(2 * LONGEST_LOOK, self.timeout / 4)]
        return min(silent or stuck, key=lambda r: (live[r].last.blocked, live[r].last.step, live[r].last.since))

    def _stuck(self, seen: _Seen) -> bool:
        """Whether a rank is too long in an instruction of its own, or waits for data that does not come."""
        if seen.last.text == LOADING:
            return seen.idle > self.timeout
        return seen.last.watched and seen.noteless > self.timeout
