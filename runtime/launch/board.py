"""The board of a rank: the instruction that it runs, for the error message when it dies, raises or hangs.

A board is a few bytes in a memory-mapped file, which can be read after the process was killed. The supervisor reads the
boards of all ranks, and picks the first cause among several failures.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import select
import signal
import struct
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpcompile.core.trace import kind_of

SIZE, HEAD = 256, struct.Struct("<diH")  # time, step, length of the text that follows
LOST = re.compile(r"Connection|closed by peer|Timed out|timed out|timeout|Broken pipe|NCCL|gloo", re.IGNORECASE)
AWAY = "("  # texts that begin so are no instruction: planning, evaluation, between steps


@dataclass(frozen=True)
class Doing:
    """The content of a board: an instruction, its step, and when it began."""

    since: float
    step: int
    text: str

    @property
    def blocked(self) -> bool:
        """Whether the rank waits for others, so that a long time is not its own fault."""
        return kind_of(self.text) == "wait"

    @property
    def watched(self) -> bool:
        return bool(self.text) and not self.text.startswith(AWAY) and not self.blocked

    def __str__(self) -> str:
        if not self.text:
            return "before the first step"
        if self.text.startswith(AWAY):
            return f"step {self.step}, {self.text.strip('()')}"
        return f"step {self.step}, instruction '{self.text}'"


class Board:
    """The board of a rank, to write or to read."""

    def __init__(self, file: Path) -> None:
        with open(file, "a+b") as opened:
            opened.truncate(SIZE)
            self.map = mmap.mmap(opened.fileno(), SIZE)

    def note(self, step: int, text: str) -> None:
        data = text.encode()[: SIZE - HEAD.size]
        self.map[HEAD.size : HEAD.size + len(data)] = data
        HEAD.pack_into(self.map, 0, time.time(), step, len(data))

    def read(self) -> Doing:
        since, step, length = HEAD.unpack_from(self.map)
        text = self.map[HEAD.size : HEAD.size + min(length, SIZE - HEAD.size)].decode(errors="replace")
        return Doing(since, step, text)


own: Board | None = None  # this process's board, if it was launched


@contextlib.contextmanager
def away(step: int, text: str) -> Iterator[None]:
    """Note on the board that this rank is outside a step, for as long as it takes (saving, evaluating)."""
    if own is not None:
        own.note(step, f"({text})")
    yield
    if own is not None:
        own.note(step, "(between steps)")


@dataclass(frozen=True)
class Failure:
    """How one rank ended. `lost`: it lost its connection to another one, whose failure is the cause."""

    rank: int
    when: float
    what: str
    doing: Doing
    lost: bool = False
    details: str = ""

    def say(self, K: int) -> str:
        replica = f" of replica {self.rank // K}" if self.rank >= K else ""
        return f"rank {self.rank} (stage {self.rank % K}{replica}) {self.what} ({self.doing})"


def failure_of(error: BaseException, rank: int) -> Failure:
    """The failure of this rank, by the exception that ended it."""
    doing = own.read() if own is not None else Doing(time.time(), 0, "")
    text = str(error).strip() or type(error).__name__
    lost = isinstance(error, (RuntimeError, ConnectionError)) and bool(LOST.search(text))
    what = f"lost the others: {text}" if lost else f"failed: {type(error).__name__}: {text}"
    return Failure(rank, time.time(), what, doing, lost, "".join(traceback.format_exception(error)))


def first_cause(failures: Sequence[Failure]) -> Failure:
    """The earliest failure that is not a lost connection; else the earliest of all."""
    return min(failures, key=lambda f: (f.lost, f.when))


def signal_name(code: int) -> str:
    try:
        return signal.Signals(code).name
    except ValueError:
        return f"signal {code}"


def die_with(pipe: Any) -> None:
    """End this process when the reader of the pipe is gone, however it ended."""

    def watch() -> None:
        waiting = select.poll()
        waiting.register(pipe.fileno(), 0)  # errors only: the reader has gone
        waiting.poll()
        if not pipe.closed:
            os._exit(1)

    threading.Thread(target=watch, daemon=True, name="supervisor watch").start()
