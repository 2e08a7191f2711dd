"""Whether a bench had the machine to itself: the share of all cores' time that other programs took, or a hypervisor.

>>> with Watched(found, tell):           # fills in found.others
...     ...
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from lpcompile.bench.results import Bench

BUSY = 0.05  # share of the machine's time beyond which figures are not to be trusted
LOOK = 3.0  # seconds over which a waiting bench looks at the machine
QUIET_LOOKS = 3  # in a row, before it begins
SAY_EVERY = 60.0  # seconds


class Ticks(NamedTuple):
    """Clock ticks since the machine started: of all cores, of those in use, and of this program's processes."""

    all: float
    used: float
    own: float


def ticks() -> Ticks | None:
    """The ticks so far; None on systems without /proc."""
    try:
        line = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        own = _tree(os.getpid())
    except (OSError, ValueError):
        return None
    user, nice, system, idle, wait, irq, soft, steal = map(float, line)
    used = user + nice + system + irq + soft + steal
    return Ticks(used + idle + wait, used, own)


def _tree(root: int) -> float:
    """User and system ticks of a process and of all that descend from it, also those that have ended."""
    children: dict[int, list[int]] = {}
    spent: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            pid = int(folder.name)
            children.setdefault(int(stat[1]), []).append(pid)
            spent[pid] = sum(float(s) for s in stat[11:15])
    found, left = 0.0, [root]
    while left:
        pid = left.pop()
        found += spent.get(pid, 0.0)
        left += children.get(pid, [])
    return found


def others(before: Ticks | None, after: Ticks | None) -> float:
    """The share of the time between them that others used."""
    if before is None or after is None or after.all <= before.all:
        return 0.0
    return max(0.0, (after.used - before.used) - (after.own - before.own)) / (after.all - before.all)


def wait_for_quiet(
    tell: Callable[[str], None],
    look: Callable[[], Ticks | None] = ticks,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when others have used next to nothing for a while; it may take as long as they do."""
    calm, waited, said = 0, 0.0, -SAY_EVERY
    while calm < QUIET_LOOKS:
        before = look()
        sleep(LOOK)
        waited += LOOK
        share = others(before, look())
        calm = calm + 1 if share <= BUSY else 0
        if not calm and waited - said >= SAY_EVERY:
            tell(f"waiting for a quiet machine: others use {100 * share:.0f} % of its cores")
            said = waited


class Watched:
    """Around a measurement: waits for quiet first where that was asked for, and notes how busy others were."""

    def __init__(self, found: Bench, tell: Callable[[str], None]) -> None:
        self.found, self.tell = found, tell

    def __enter__(self) -> None:
        if self.found.request.patient:
            wait_for_quiet(self.tell)
        self.before = ticks()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.found.others = others(self.before, ticks())
