"""The watchdog of ranks that were not launched by us (under torchrun): each rank publishes its board in the store.

All of them look at all boards. When one hangs, the lowest other rank says which and what it was doing, and ends it if
it runs on the same machine; the others end too, and the elastic launcher sees that. A rank without a board has not
joined yet: it may take its time, unless it is stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import PrefixStore

from lpcompile.runtime.launch import board
from lpcompile.runtime.launch.board import Board, Doing, Failure
from lpcompile.runtime.launch.cpu import Queue, Share
from lpcompile.runtime.launch.identity import Identity, identity, is_stopped, kill, sibling
from lpcompile.runtime.launch.watch import Watch, heartbeat

PREFIX = "lpcompile board"
SETTLE = 2.0  # seconds in which the first cause is seen before its echoes
GRACE = 3.0  # seconds in which a process ends after an exception
ENDED, FAILED = -1, -2  # instead of a step: the script has ended, or is ending with an exception


class Overseer:
    """This rank's heartbeat, and its look at the others. `K` may become known later, with the plan."""

    def __init__(self, store: Any, rank: int, world: int, timeout: float) -> None:
        self.store, self.rank, self.world, self.timeout, self.K = store, rank, world, timeout, world
        self.watch, self.parent, self.over = Watch(timeout, self._share), os.getppid(), False
        self.beating = threading.Lock()  # held while the heartbeat's thread uses the store
        self.ended = False  # the script, or its part of the job
        self.error: BaseException | None = None  # that ends the script, also where it is caught to be printed
        self.queues: dict[int, Queue] = {}
        self.boards: dict[int, Board | None] = {}  # of ranks on this machine; None: of one that is not
        self.failed_at: float | None = None  # when another rank was seen to have failed
        self.board = board.own = Board()
        self.board.note(0, "(starting)")
        self.store.set(f"{PREFIX} address {rank}", self.board.address)
        self.store.set(f"{PREFIX} process {rank}", json.dumps(identity()))
        atexit.register(self.end)
        heartbeat(self.board, timeout, self.beat)

    def beat(self) -> None:
        """After every beat: publish, look at the others. Without its launcher a rank ends."""
        if os.getppid() != self.parent:
            os._exit(1)
        with self.beating:
            if not self.over:
                self._look()

    def _look(self) -> None:
        try:
            self.store.set(f"{PREFIX} {self.rank}", self.board.map[:])
            boards = {r: d for r in range(self.world) if (d := self._read(r)) is not None}
        except Exception:  # the store, or the machine that it is on, does not answer
            self.over = True
            return
        for rank in set(range(self.world)) - boards.keys():
            if is_stopped(self._process(rank)):
                boards[rank] = Doing(time.time(), 0, "(starting)", beats=1)
            else:
                self.watch.seen.pop(rank, None)
        if any(doing.step == FAILED for doing in boards.values()):
            self._end_after_failure()
            return
        ended = [r for r, doing in boards.items() if doing.step == ENDED]
        hangs = self.watch.look(boards, ended)
        waits = hangs is not None and bool(ended) and boards[hangs].blocked
        if hangs is not None and (waits or hangs != self.rank) and not self.over:
            speaker = next((r for r in boards if r not in ended and (waits or r != hangs)), self.rank)
            self.report(ended[0] if waits else hangs, boards[hangs], waits, speaker)

    def _end_after_failure(self) -> None:
        """Another rank is about to end with an exception; those that wait for it learn it from their connection."""
        self.failed_at = self.failed_at or time.monotonic()
        if time.monotonic() > self.failed_at + GRACE + 2 * SETTLE:
            os._exit(1)

    def _read(self, rank: int) -> Doing | None:
        key = f"{PREFIX} {rank}"
        if not self.store.check([key]):
            return None
        if rank not in self.boards:
            self.boards[rank] = self._memory_of(rank)
        seen = self.boards[rank]
        return seen.read() if seen is not None else board.parsed(self.store.get(key))

    def _memory_of(self, rank: int) -> Board | None:
        """The board of a rank on this machine, as it is now: what it published last may be half a second old."""
        process, address = self._process(rank), f"{PREFIX} address {rank}"
        if process is None or process != identity(process["pid"]) or not self.store.check([address]):
            return None
        with contextlib.suppress(OSError):
            return Board(Path(self.store.get(address).decode()))
        return None

    def _process(self, rank: int) -> Identity | None:
        """The rank's process, also before it has said which one it is, where torchrun started it beside this one."""
        key = f"{PREFIX} process {rank}"
        found: Identity | None = json.loads(self.store.get(key)) if self.store.check([key]) else sibling(rank)
        return found

    def _share(self, rank: int, seconds: float, doing: Doing) -> Share:
        if rank not in self.queues:
            self.queues[rank] = Queue(self._process(rank))
        return self.queues[rank].share(seconds, besides=doing.heart)

    def report(self, rank: int, doing: Doing, ended: bool, speaker: int) -> None:
        """Say which rank hangs, or ended while another one waits for it; end it, and end. One rank speaks for all."""
        if self.rank == speaker:
            what = "ended, and others wait for it" if ended else f"has not moved for {self.timeout:g} s"
            failure = Failure(rank, doing.since, what, doing)
            print(f"lpcompile: training stopped: {failure.say(self.K)}", file=sys.stderr, flush=True)
            kill(self._process(rank))
        time.sleep(SETTLE)
        os._exit(1)

    def end(self) -> None:
        """This rank has nothing more to do with the others: they no longer wait for its heartbeat.

        Python ends threads that come back from C++ while it shuts down, and C++ takes that for a crash (SIGABRT): so
        the heartbeat must not be in the store. After an exception the exit is bounded, and skips destructors of the
        process group, which wait for the other ranks.
        """
        error = error_of(self)
        if self.ended:
            return
        self.ended = True
        if error is not None and hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, GRACE + SETTLE)
        connected, self.over, doing = not self.over, True, self.board.read()
        if self.beating.acquire(timeout=GRACE):
            self.beating.release()
        self.board.note(ENDED if error is None else FAILED, "(at the end)")
        if connected:
            with contextlib.suppress(Exception):
                self.store.set(f"{PREFIX} {self.rank}", self.board.map[:])
        if error is not None:
            self._exit(error, doing)

    def _exit(self, error: BaseException, doing: Doing) -> None:
        """End with the exit code of an exception, after all other exit functions; the first cause before its echoes."""
        failure = board.failure_of(error, self.rank)
        if failure.lost:
            with contextlib.suppress(Exception):  # the store may be gone
                self.name_gone(doing)
            time.sleep(SETTLE)
        else:
            tell_torchrun(f"{type(error).__module__}.{type(error).__qualname__}: {error}")
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1)

    def name_gone(self, doing: Doing) -> None:
        """Say whose end this rank's lost connection comes from, if that one had no error, as after sys.exit(0)."""
        for rank in set(range(self.world)) - {self.rank}:
            seen = self._read(rank)
            if seen is not None and seen.step == ENDED:
                failure = Failure(rank, doing.since, "ended, and others wait for it", doing)
                print(f"lpcompile: training stopped: {failure.say(self.K)}", file=sys.stderr, flush=True)
                return


def tell_torchrun(text: str) -> None:
    """Leave the error where torchrun's own summary takes it from, and the time by which it tells the first cause."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if file is not None and not os.path.exists(file):
        told = {"message": text, "extraInfo": {"py_callstack": text, "timestamp": str(int(time.time()))}}
        with contextlib.suppress(OSError), open(file, "w") as opened:
            json.dump({"message": told}, opened)


overseer: Overseer | None = None  # of this process, under torchrun


def oversee(store: Any, rank: int, world: int, timeout: float) -> None:
    """Start the watchdog of this process, with a connection to the store of its own: calls to a store take turns."""
    global overseer
    with contextlib.suppress(RuntimeError, NotImplementedError):
        overseer = Overseer(PrefixStore("lpcompile", store.clone()), rank, world, timeout)


def error_of(ending: Overseer | None) -> BaseException | None:
    """The exception that ends this script, printed or caught to be printed."""
    found: BaseException | None = (ending.error if ending else None) or getattr(sys, "last_value", None)
    return found


def end() -> None:
    if overseer is not None:
        overseer.end()
