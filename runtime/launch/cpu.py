"""CPU time of processes, and how long they waited for a CPU, read from /proc; on systems without it both are unknown.

On a busy machine a process may be late without hanging: it waits in the scheduler's queue. A process that is stopped,
sleeps or waits for another one is in no queue.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import NamedTuple

from lpcompile.runtime.launch.identity import Identity

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
UTIME = 11  # place of the user time, which the system time follows, after the state in /proc/PID/stat


def children(pid: int) -> list[int]:
    """The descendants of a process, such as the workers of a DataLoader."""
    found: list[int] = []
    for file in PROC.glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError, ValueError):
            found += [int(word) for word in file.read_text().split()]
    return [*found, *(below for child in found for below in children(child))]


def of_children() -> float:
    """Seconds of CPU time that the living children of this process have used."""
    total = 0.0
    for pid in children(os.getpid()):
        with contextlib.suppress(OSError, ValueError, IndexError):
            own = _stat(PROC / str(pid))
            total += (int(own[UTIME]) + int(own[UTIME + 1])) / TICKS
    return total


class Share(NamedTuple):
    """Seconds of an interval in which a thread of a process ran, and in which one waited for a CPU."""

    ran: float = 0.0
    waited: float = 0.0


class Queue:
    """CPU time and waiting time of the threads of a process.

    >>> queue = Queue(process)
    >>> queue.share(1.0)        # of the second since the last call: of the threads that ran and waited longest
    """

    def __init__(self, process: Identity | None) -> None:
        here = process is not None and process["host"] == socket.gethostname()
        self.pid: int | None = process["pid"] if here and process is not None else None
        self.before: dict[str, tuple[int, int]] = {}

    def share(self, seconds: float, besides: int = 0) -> Share:
        """The largest of all threads since the last call. besides: the heartbeat's thread, which does not count."""
        if self.pid is None:
            return Share()
        now, found = {}, [Share()]
        for pid in (self.pid, *children(self.pid)):
            for thread in PROC.glob(f"{pid}/task/*"):
                if thread.name == str(besides):
                    continue
                with contextlib.suppress(OSError, ValueError, IndexError):
                    ran, waited = (int(word) for word in (thread / "schedstat").read_text().split()[:2])
                    now[thread.name] = (ran, waited)
                    found.append(self._since(thread, ran, waited, seconds))
        self.before = now
        ran, waited = (min(max(values), seconds) for values in zip(*found, strict=True))
        return Share(ran, min(waited, seconds - ran))

    def _since(self, thread: Path, ran: int, waited: int, seconds: float) -> Share:
        """The kernel adds the time in the queue when the thread leaves it."""
        before = self.before.get(thread.name)
        if before is None:
            return Share()
        if before == (ran, waited):
            return Share(0.0, seconds if _stat(thread)[0] == "R" else 0.0)
        return Share((ran - before[0]) / 1e9, (waited - before[1]) / 1e9)


def _stat(process: Path) -> list[str]:
    """The fields of /proc/PID/stat from the state on."""
    return (process / "stat").read_text().rpartition(")")[2].split()
