"""The supervisor of launched ranks: their results, their failures, and whether they still move."""

from __future__ import annotations

import contextlib
import pickle
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import connection, forkserver, resource_tracker
from pathlib import Path
from typing import Any

from lpcompile.errors import LpError, TrainingError
from lpcompile.runtime.launch import board
from lpcompile.runtime.launch.board import Board, Doing, Failure
from lpcompile.runtime.launch.cpu import Queue, Share
from lpcompile.runtime.launch.identity import Identity, identity, kill
from lpcompile.runtime.launch.watch import LONGEST_LOOK, STARTING, Watch, interval

SETTLE = 2.0  # seconds to hear from the others, so that the first cause can be told from its echoes
GRACE = 3.0  # seconds between asking a process to end and ending it
NO_SERVER = 255  # exit code that multiprocessing gives to ranks whose fork server is gone


class Interrupted(TrainingError):
    """A rank failed; the message names the first cause."""


class Supervisor:
    """Watches the processes of a launch: their results, their failures, and whether they still move."""

    def __init__(
        self, folder: Path, world: int, K: int, timeout: float, line: Any = None,
        answer: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.line, self.answer = line, answer  # questions of rank 0, and who answers them
        self.processes: list[Any] = []
        self.pipes: list[Any] = []
        self.boards = [Board(folder / str(rank)) for rank in range(world)]
        self.K, self.timeout, self.watch = K, timeout, Watch(timeout, self._share)
        self.identities: list[Identity | None] = []
        self.queues: list[Queue] = []
        self.failures: dict[int, Failure] = {}
        self.errors: dict[int, LpError] = {}
        self.done: dict[int, Any] = {}

    def start(self, process: Any, pipe: Any) -> None:
        """Start a rank; `pipe` is where it reports. A fork server that does not answer is ended."""
        _within(process.start, max(self.timeout, STARTING))
        self.processes.append(process)
        self.pipes.append(pipe)
        self.identities.append(identity(process.pid))
        self.queues.append(Queue(self.identities[-1]))

    def supervise(self) -> Any:
        """Wait until all ranks have ended, or SETTLE seconds after a failure, for the reports of the others."""
        deadline: float | None = None
        while len(self.done) + len(self.failures) < len(self.processes):
            self._listen(interval(self.timeout))
            if not self.failures and self._find_hanging():
                break
            if self.failures and deadline is None:
                deadline = time.monotonic() + SETTLE
            if deadline is not None and time.monotonic() > deadline:
                break
        if self.failures:
            raise self._cause()
        for process in self.processes:
            process.join(GRACE)
        return self.done[0]

    def _listen(self, seconds: float) -> None:
        left = [r for r in range(len(self.processes)) if r not in self.done and r not in self.failures]
        lines = [self.line] if self.line is not None else []
        connection.wait([*(self.pipes[r] for r in left), *(self.processes[r].sentinel for r in left), *lines], seconds)
        self._answer()
        for rank in left:
            message = self._message(rank)
            if message is not None:
                fine, value = message
                if fine:
                    self.done[rank] = value
                else:
                    self.failures[rank], error = value
                    if error is not None:
                        self.errors[rank] = error
            elif not self.processes[rank].is_alive() and not self.pipes[rank].poll():
                self.failures[rank] = self._died(rank)

    def _answer(self) -> None:
        """Answer rank 0's questions; an error of the user's function goes to the user as it is."""
        while self.line is not None and self.answer is not None and self.line.poll():
            try:
                question = self.line.recv()
            except (EOFError, OSError):
                self.line = None
                return
            answered = self.answer(question)
            with contextlib.suppress(OSError):  # it has ended meanwhile, which its pipe tells
                self.line.send(answered)

    def _message(self, rank: int) -> Any:
        try:
            return pickle.loads(self.pipes[rank].recv_bytes()) if self.pipes[rank].poll() else None
        except (EOFError, OSError):
            self.processes[rank].join(GRACE)
            return (False, (self._died(rank), None))

    def _died(self, rank: int) -> Failure:
        code = self.processes[rank].exitcode
        what = f"was killed by {board.signal_name(-code)}" if code and code < 0 else f"ended with exit code {code}"
        if code == NO_SERVER:
            what = "lost the fork server, from which all ranks come and which was ended"
        return Failure(rank, self._now(rank).since, what, self._now(rank))

    def _now(self, rank: int) -> Doing:
        return self.boards[rank].read()

    def _share(self, rank: int, seconds: float, doing: Doing) -> Share:
        return self.queues[rank].share(seconds, besides=doing.heart)

    def _find_hanging(self) -> bool:
        boards = {rank: self._now(rank) for rank in range(len(self.processes))}
        rank = self.watch.look(boards, self.done)
        if rank is not None:
            what = f"has not moved for {self.timeout:g} s"
            self.failures[rank] = Failure(rank, boards[rank].since, what, boards[rank])
            kill(self.identities[rank])  # if it is stopped, it cannot end by itself
        return rank is not None

    def _cause(self) -> LpError:
        first = board.first_cause(list(self.failures.values()))
        if first.rank in self.errors:
            return self.errors[first.rank]
        others = [f.say(self.K) for f in self.failures.values() if f is not first]
        text = f"training stopped: {first.say(self.K)}"
        if first.details and not first.lost:
            text += f"\n{first.details.rstrip()}"
        return Interrupted("\n".join([text, *(f"then: {line.splitlines()[0]}" for line in others)]))

    def end(self) -> None:
        """End all processes: terminate, then kill, also where the fork server cannot tell of them any more."""
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        deadline = time.monotonic() + GRACE
        for process, known in zip(self.processes, self.identities, strict=True):
            process.join(max(0.0, deadline - time.monotonic()))
            kill(known)
            process.join(GRACE)
            with contextlib.suppress(ValueError):  # the fork server is stopped and does not say that it has ended
                process.close()
        for pipe in (*self.pipes, *([self.line] if self.line is not None else [])):
            pipe.close()


def _within(call: Callable[[], Any], seconds: float) -> None:
    """Call, but wait no longer than this: a fork server that is stopped takes requests and never answers.

    While the server runs or waits for a CPU, as when it imports torch, no time counts.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            resource_tracker.ensure_running()  # which lets Ctrl-C through again to what this thread starts
            if hasattr(signal, "pthread_sigmask"):  # a server that still imports torch would print where it was
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="start of a rank")
    thread.start()
    server: Any = forkserver._forkserver
    queue, left = Queue(None), seconds
    while thread.is_alive() and left > 0:
        begin = time.monotonic()
        thread.join(interval(seconds))
        passed = time.monotonic() - begin
        if queue.pid is None and server._forkserver_pid is not None:
            queue = Queue(identity(server._forkserver_pid))
        share = queue.share(passed)
        left -= min(passed, LONGEST_LOOK) - share.ran - share.waited
    if thread.is_alive():
        kill(identity(server._forkserver_pid) if server._forkserver_pid else None)
        thread.join(GRACE)
        raise Interrupted(
            f"the fork server, from which ranks are started, has not answered for {seconds:g} s and was ended; "
            f"start again"
        )
    for error in errors:
        raise error
