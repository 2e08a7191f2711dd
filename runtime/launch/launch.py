"""Ranks on this machine: one process each, on loopback, pinned to a core or a GPU of its own, and supervised.

>>> launch(train, (job,), world=2, K=2)        # the result of train(job) on rank 0

Under torchrun each process is a rank already: it calls `join`.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from lpcompile.errors import LpError, TrainingError, UsageError
from lpcompile.runtime.launch import board
from lpcompile.runtime.launch.board import Board, Doing, Failure

TIMEOUT = 60.0  # seconds within which a job with a rank that is dead or hangs has ended everywhere
SETTLE = 2.0  # seconds to hear from the others, so that the first cause can be told from its echoes
PRELOAD = ["torch._dynamo", "lpcompile.compile", "lpcompile.runtime.engine.trainer", "lpcompile.runtime.loop.loop"]
PATIENCE = 3600.0  # seconds that ranks wait for rank 0 to measure and plan
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
GRACE = 3.0  # seconds between asking a process to end and ending it


T = TypeVar("T")
R = TypeVar("R")


class Interrupted(TrainingError):
    """A rank failed; the message names the first cause."""


def torchrun_rank() -> int | None:
    """This process's rank under torchrun (or anything that sets its environment), else None."""
    return int(os.environ["RANK"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else None


def restarts() -> int:
    """How often an elastic launcher has restarted this job."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def join(device: str = "cpu", timeout: float = TIMEOUT, store: str | None = None) -> None:
    """Open the process group of torchrun's environment, or of a store that `launch` made."""
    if dist.is_initialized() or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return
    if store is not None or os.environ.get("MASTER_ADDR", "") in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    given: dict[str, Any] = {"timeout": datetime.timedelta(seconds=timeout)}
    if store is not None:
        given |= {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        given["store"] = torch._C._distributed_c10d.FileStore(store, given["world_size"])
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo", **given)


def from_rank_0(make: Callable[[], T], follow: Callable[[T], R]) -> R | None:
    """Broadcast the result of `make` on rank 0 to `follow` on the others; None on rank 0. Waits up to PATIENCE."""
    patient: Any = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    message: list[Any] = [make() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(message, 0, group=patient)
    found = follow(message[0]) if dist.get_rank() else None
    dist.barrier(group=patient)
    return found


def leave() -> None:
    """Close the process group after a barrier, so that no rank takes it for a failure."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def pin(local_rank: int, device: str = "cpu") -> None:
    """One intra-op thread on one core, or one GPU."""
    if device.startswith("cuda"):
        torch.cuda.set_device(local_rank)
        return
    torch.set_num_threads(1)
    keep_freed_memory()
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[local_rank % len(cores)]})


def keep_freed_memory() -> None:
    """Keep freed memory for the activations of the next step. By default glibc returns it to the system and page
    faults take up to a tenth of a step."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_THRESHOLD, 2**30)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def launch(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    world: int,
    K: int | None = None,
    device: str = "cpu",
    timeout: float = TIMEOUT,
) -> Any:
    """Run `function(*args)` in `world` processes of one process group; gives its result on rank 0.

    The processes are forked from a server that has only imported torch: function and arguments are pickled.
    A rank that dies, raises, or stays in one instruction for `timeout` seconds ends all of them with `Interrupted`.
    K: stages, to say which stage and replica a rank is.
    """
    if device.startswith("cuda") and torch.cuda.device_count() < world:
        raise UsageError(f"{world} ranks need a GPU each, and this machine has {torch.cuda.device_count()}")
    folder = Path(tempfile.mkdtemp(prefix="lpcompile-"))
    context = _context()
    supervisor = _Supervisor(folder, world, K or world, timeout)
    try:
        for rank in range(world):
            receive, send = context.Pipe(duplex=False)
            # fds 1 and 2 as they are now: the server that ranks come from may be older than a redirection of them
            outputs = [connection.Connection(os.dup(fd), readable=False) for fd in (1, 2)]
            given = (function, tuple(args), rank, world, str(folder), device, timeout, send, outputs)
            process = context.Process(target=_rank, args=given, name=f"rank {rank}")
            try:
                process.start()
            except (AttributeError, TypeError, pickle.PicklingError) as error:
                raise UsageError(f"a new process cannot be given this: {error}; use functions of a module") from error
            for end in (send, *outputs):
                end.close()
            supervisor.processes.append(process)
            supervisor.pipes.append(receive)
        return supervisor.supervise()
    finally:
        supervisor.end()
        shutil.rmtree(folder, ignore_errors=True)


def _context() -> Any:
    """A fork server, which imports torch once for all ranks and has no threads."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _rank(
    function: Callable[..., Any], args: tuple[Any, ...], rank: int, world: int, folder: str, device: str,
    timeout: float, pipe: Any, outputs: list[Any],
) -> None:  # fmt: skip
    """The life of one rank's process."""
    for fd, output in enumerate(outputs, start=1):
        os.dup2(output.fileno(), fd)
        output.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which ends this process
    board.die_with(pipe)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
                   "LOCAL_WORLD_SIZE": str(world)}  # fmt: skip
    board.own = Board(Path(folder) / str(rank))
    try:
        pin(rank, device)
        join(device, 1.5 * timeout, f"{folder}/store")  # the supervisor, who knows which rank hangs, reports first
        result = function(*args)
        board.own.note(0, "(at the end)")
        leave()
        _tell(pipe, (True, result if rank == 0 else None))
    except BaseException as error:
        _tell(pipe, (False, (board.failure_of(error, rank), error if isinstance(error, LpError) else None)))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # destructors of a broken process group can block


def _tell(pipe: Any, message: Any) -> None:
    """By plain pickle: torch's own shares memory, which would end with this process."""
    pipe.send_bytes(pickle.dumps(message))


class _Supervisor:
    """Watches the processes of a launch: their results, their failures, and whether they still move."""

    def __init__(self, folder: Path, world: int, K: int, timeout: float) -> None:
        self.processes: list[Any] = []
        self.pipes: list[Any] = []
        self.boards = [Board(folder / str(rank)) for rank in range(world)]
        self.K, self.timeout = K, timeout
        self.failures: dict[int, Failure] = {}
        self.errors: dict[int, LpError] = {}
        self.done: dict[int, Any] = {}

    def supervise(self) -> Any:
        """Wait until all ranks have ended, or SETTLE seconds after a failure, for the reports of the others."""
        deadline: float | None = None
        while len(self.done) + len(self.failures) < len(self.processes):
            self._listen(0.2)
            self._find_hanging()
            if self.failures and deadline is None:
                deadline = time.time() + SETTLE
            if deadline is not None and time.time() > deadline:
                break
        if self.failures:
            raise self._cause()
        for process in self.processes:
            process.join(GRACE)
        return self.done[0]

    def _listen(self, seconds: float) -> None:
        left = [r for r in range(len(self.processes)) if r not in self.done and r not in self.failures]
        connection.wait([*(self.pipes[r] for r in left), *(self.processes[r].sentinel for r in left)], seconds)
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

    def _message(self, rank: int) -> Any:
        try:
            return pickle.loads(self.pipes[rank].recv_bytes()) if self.pipes[rank].poll() else None
        except (EOFError, OSError):
            self.processes[rank].join(GRACE)
            return (False, (self._died(rank), None))

    def _died(self, rank: int) -> Failure:
        code = self.processes[rank].exitcode
        what = f"was killed by {board.signal_name(-code)}" if code and code < 0 else f"ended with exit code {code}"
        return Failure(rank, self._now(rank).since, what, self._now(rank))

    def _now(self, rank: int) -> Doing:
        return self.boards[rank].read()

    def _find_hanging(self) -> None:
        for rank in range(len(self.processes)):
            doing = self._now(rank)
            if rank in self.done or rank in self.failures or not doing.watched:
                continue
            if time.time() - doing.since > self.timeout:
                what = f"has not moved for {self.timeout:g} s"
                self.failures[rank] = Failure(rank, doing.since, what, doing)

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
        """End all processes: terminate, then kill."""
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        deadline = time.time() + GRACE
        for process in self.processes:
            process.join(max(0.0, deadline - time.time()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
