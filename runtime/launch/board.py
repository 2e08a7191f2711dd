"""The board of a rank: the instruction that it runs, for the error message when it dies, raises or hangs.

A board is a few bytes of mapped memory. That of a launched rank is a file, which can be read after the process was
killed; under torchrun it is published in the store, and ranks of the same machine read the memory itself. A thread
(`heartbeat`) counts on it while the process is alive. Whoever reads the boards of all ranks (`watch`) sees which one
has stopped, and picks the first cause among several failures.
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

SIZE = 256
PULSE = struct.Struct("<QdQ")  # beats of the heartbeat, seconds of CPU time, number of its thread
HEAD = struct.Struct("<diBQH")  # time, step, mood, number of the note, length of the text that follows
TEXT = PULSE.size + HEAD.size  # where the text begins
WORKS, WAITS, RESTS = 0, 1, 2  # moods: does its own work; waits for other ranks; may be idle for as long as it likes
BETWEEN = "(between steps)"
LOADING = "(loading data)"
LOST = re.compile(r"Connection|closed by peer|Timed out|timed out|timeout|Broken pipe|NCCL|gloo", re.IGNORECASE)
TALKING = ("torch/distributed/", "runtime/comm/")  # parts of the files that messages go through
AWAY = "("  # texts that begin so are no instruction: planning, evaluation, between steps


@dataclass(frozen=True)
class Doing:
    """The content of a board: an instruction, its step, and when it began."""

    since: float
    step: int
    text: str
    mood: int = WORKS
    number: int = 0
    beats: int = 0
    cpu: float = 0.0
    heart: int = 0  # the thread of the heartbeat

    @property
    def blocked(self) -> bool:
        """Whether the rank waits for others, so that a long time is not its own fault."""
        return self.mood == WAITS or kind_of(self.text) == "wait"

    @property
    def watched(self) -> bool:
        """Whether it runs an instruction of its own, for which there is a time limit."""
        return bool(self.text) and not self.text.startswith(AWAY) and not self.blocked

    def __str__(self) -> str:
        if not self.text:
            return "before the first step"
        if self.text.startswith(AWAY):
            return f"step {self.step}, {self.text.strip('()')}"
        return f"step {self.step}, instruction '{self.text}'"


class Board:
    """The board of a rank, to write or to read. Without a file it is this process's own memory, which other processes
    find at `address` where the system has such memory."""

    def __init__(self, file: Path | None = None) -> None:
        self.number, self.now, self.address = 0, (0, "", 0), ""
        if file is None:
            memory = os.memfd_create("lpcompile board") if hasattr(os, "memfd_create") else -1
            if memory >= 0:
                os.truncate(memory, SIZE)
                self.address = f"/proc/{os.getpid()}/fd/{memory}"
            self.map = mmap.mmap(memory, SIZE)
            return
        with open(file, "a+b") as opened:
            opened.truncate(SIZE)
            self.map = mmap.mmap(opened.fileno(), SIZE)

    def note(self, step: int, text: str, mood: int = WORKS) -> None:
        data = text.encode()[: SIZE - TEXT]
        self.number += 1
        self.now = (step, text, len(data))
        self.map[TEXT : TEXT + len(data)] = data
        HEAD.pack_into(self.map, PULSE.size, time.time(), step, mood, self.number, len(data))

    def feel(self, mood: int) -> None:
        """Change the mood of the current note."""
        step, _, length = self.now
        self.number += 1
        HEAD.pack_into(self.map, PULSE.size, time.time(), step, mood, self.number, length)

    def beat(self, beats: int, cpu: float) -> None:
        PULSE.pack_into(self.map, 0, beats, cpu, threading.get_native_id())

    def read(self) -> Doing:
        return parsed(self.map[:])


def parsed(data: bytes) -> Doing:
    """The content of a board's bytes."""
    beats, cpu, heart = PULSE.unpack_from(data)
    since, step, mood, number, length = HEAD.unpack_from(data, PULSE.size)
    text = data[TEXT : TEXT + min(length, SIZE - TEXT)].decode(errors="replace")
    return Doing(since, step, text, mood, number, beats, cpu, heart)


own: Board | None = None  # this process's board, if it is one of several ranks


@contextlib.contextmanager
def away(step: int, text: str, mood: int = WORKS) -> Iterator[None]:
    """Note on the board that this rank is outside a step (saving, evaluating)."""
    if own is not None:
        own.note(step, f"({text})", mood)
    yield
    if own is not None:
        own.note(step, BETWEEN)


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Inside, this rank waits for others."""
    if own is not None:
        own.feel(WAITS)
    yield
    if own is not None:
        own.feel(WORKS)


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
    lost = isinstance(error, (RuntimeError, ConnectionError)) and bool(LOST.search(text)) and _while_talking(error)
    what = f"lost the others: {text}" if lost else f"failed: {type(error).__name__}: {text}"
    return Failure(rank, time.time(), what, doing, lost, "".join(traceback.format_exception(error)))


def _while_talking(error: BaseException) -> bool:
    """Whether the error comes from a message to another rank, and not from a connection of the user's own."""
    frames = traceback.extract_tb(error.__traceback__)
    return not frames or any(part in Path(frames[-1].filename).as_posix() for part in TALKING)


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
