"""Ranks on this machine: one process each, on loopback, pinned to a core or a GPU of its own, and supervised.

>>> launch(train, (job,), world=2, K=2)        # the result of train(job) on rank 0

Under torchrun each process is a rank already: it calls `join`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import datetime
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, spawn
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore

from lpcompile.errors import LpError, TrainingError, UsageError
from lpcompile.runtime.comm import exchange, pack
from lpcompile.runtime.launch import board, cpu, overseer, parent
from lpcompile.runtime.launch.board import Board
from lpcompile.runtime.launch.hosts import Hosts, enter
from lpcompile.runtime.launch.supervisor import GRACE, Interrupted, Supervisor
from lpcompile.runtime.launch.temporary import temporary_folder
from lpcompile.runtime.launch.watch import heartbeat

__all__ = ["GRACE", "Interrupted", "join", "launch", "leave", "pin"]
TIMEOUT = 60.0  # seconds within which a job with a rank that is dead or hangs has ended everywhere
PRELOAD = [
    "torch._dynamo",
    "cloudpickle",
    "networkx",
    "lpcompile.compile",
    "lpcompile.runtime.engine.trainer",
    "lpcompile.runtime.loop.loop",
]
NAME = "lpcompile rank "  # begins the names of processes that are ranks
REPEATED = (r"'pin_memory' argument is set", r"Detected call of `lr_scheduler")
PATIENCE = 3600.0  # seconds that ranks wait for each other; whether one hangs, the watchdog knows sooner
STORE_PATIENCE = datetime.timedelta(minutes=5)  # for another rank to open the store, and to write what is read from it
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt

T = TypeVar("T")
R = TypeVar("R")


def torchrun_rank() -> int | None:
    """This process's rank under torchrun (or anything that sets its environment), else None."""
    return int(os.environ["RANK"]) if "RANK" in os.environ and "WORLD_SIZE" in os.environ else None


def restarts() -> int:
    """How often an elastic launcher has restarted this job."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def join(device: str = "cpu", timeout: float = TIMEOUT, store: str | None = None) -> None:
    """Open the process group of torchrun's environment, or of a store that `launch` made; or take the one that is open.
    Whoever opened it (Lightning, accelerate, a script), it is closed at the end of the process."""
    if dist.is_initialized():
        atexit.unregister(_close)
        atexit.register(_close)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return
    if store is not None or os.environ.get("MASTER_ADDR", "") in ("127.0.0.1", "localhost", "::1"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    check_timeout(timeout)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kept: Any = FileStore(store, world) if store is not None else _torchruns_store(rank, timeout)
    if store is None:
        overseer.oversee(kept, rank, world, timeout)
    dist.init_process_group(
        "nccl" if device.startswith("cuda") else "gloo",
        store=kept, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=PATIENCE),
    )  # fmt: skip
    if store is None:
        atexit.register(_close)


def _close() -> None:
    """At the end of a script: a thread of gloo that lets go of a tensor once Python is gone aborts the process. After
    an exception nothing is closed, for that could wait for other ranks."""
    if dist.is_initialized() and overseer.error_of(overseer.overseer) is None:
        dist.destroy_process_group()


def _torchruns_store(rank: int, timeout: float) -> Any:
    """The store at MASTER_ADDR, for this start of the job alone.

    torchrun's own store outlives an elastic restart, with the addresses of processes that are gone: gloo would connect
    to them. A prefix for each start keeps them apart. A launcher that is gone has no store: within the time-out this
    process ends, too.
    """
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise UsageError(f"RANK and WORLD_SIZE are set but {missing[0]} is not; start the ranks with torchrun")
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    wait = datetime.timedelta(seconds=timeout) if agents else STORE_PATIENCE
    try:
        found = TCPStore(address, port, None, rank == 0 and not agents, wait, multi_tenant=True)
    except dist.DistError as error:
        raise TrainingError(
            f"the store at {address}:{port} does not answer; has the launcher ended? ({str(error).splitlines()[0]})"
        ) from None
    found.set_timeout(STORE_PATIENCE)
    return PrefixStore(f"lpcompile start {restarts()}", found)


def from_rank_0(make: Callable[[], T], follow: Callable[[T], R]) -> R | None:
    """Broadcast the result of `make` on rank 0 to `follow` on the others; None on rank 0. Waits up to PATIENCE."""
    patient: Any = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=PATIENCE))
    made = exchange.from_first(make() if dist.get_rank() == 0 else None, patient)
    found = follow(made) if dist.get_rank() else None
    with board.waiting():
        dist.barrier(group=patient)
    return found


def leave() -> None:
    """Close the process group after a barrier, so that no rank takes it for a failure."""
    if dist.is_initialized():
        with board.waiting():
            dist.barrier()
        overseer.end()
        dist.destroy_process_group()


@contextlib.contextmanager
def ends_with_error() -> Iterator[None]:
    """Under torchrun: an exception inside ends this process, also where it is caught to be printed in one line."""
    try:
        yield
    except BaseException as error:
        if overseer.overseer is not None:
            overseer.overseer.error = error
        raise


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
    hosts: Hosts | None = None,
    answer: Callable[[Any], Any] | None = None,
) -> Any:
    """Run `function(*args)` in `world` processes of one process group; gives its result on rank 0.

    The processes are forked from a server that has only imported torch, and do not import the script that calls this:
    function and arguments are sent by `pack`, also those that the script defines.
    A rank that dies, raises, or has not moved for `timeout` seconds (see `watch`) ends all of them with `Interrupted`.
    K: stages, to say which stage and replica a rank is. hosts: where they run, instead of all on this one. answer:
    called here with what rank 0 asks by `parent.ask`.
    """
    check_timeout(timeout)
    if device.startswith("cuda") and torch.cuda.device_count() < world:
        raise UsageError(f"{world} ranks need a GPU each, and this machine has {torch.cuda.device_count()}")
    with temporary_folder() as folder:
        return _launch(function, args, folder, world, K or world, device, timeout, hosts, answer)


def check_timeout(timeout: Any) -> None:
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise UsageError(f"timeout={timeout!r} is no time in which a rank could move; give seconds, 60 by default")


def _launch(
    function: Callable[..., Any], args: Sequence[Any], folder: Path, world: int, K: int, device: str, timeout: float,
    hosts: Hosts | None, answer: Callable[[Any], Any] | None,
) -> Any:  # fmt: skip
    context = _context()
    without_main()
    mine, theirs = context.Pipe() if answer is not None else (None, None)
    supervisor = Supervisor(folder, world, K, timeout, mine, answer)
    pipes: list[connection.Connection] = []
    work = pack.dumps((function, tuple(args)), "the function and its arguments", pipes)
    try:
        for rank in range(world):
            receive, send = context.Pipe(duplex=False)
            # fds 1 and 2 as they are now: the server that ranks come from may be older than a redirection of them
            outputs = [connection.Connection(os.dup(fd), readable=False) for fd in (1, 2)]
            line = theirs if rank == 0 else None
            host = hosts.of(rank, world) if hosts is not None else None
            given = (work, pipes, rank, world, str(folder), device, timeout, send, outputs, line, host)
            process = context.Process(target=_rank, args=given, name=f"{NAME}{rank}")
            supervisor.start(process, receive)
            for end in (send, *outputs, *([line] if line is not None else [])):
                end.close()
        return supervisor.supervise()
    finally:
        supervisor.end()


def without_main() -> None:
    """Let processes that are ranks start without running the user's script again, so that it needs no __main__ guard.

    Installed once, because launches of several threads overlap; other processes start as ever.
    """
    before = spawn.get_preparation_data
    if getattr(before, "without_main", False):
        return

    def prepared(name: str) -> dict[str, Any]:
        found: dict[str, Any] = before(name)
        if name.startswith(NAME):
            found = {key: value for key, value in found.items() if not key.startswith("init_main")}
        return found

    prepared.without_main = True  # type: ignore[attr-defined]
    spawn.get_preparation_data = prepared


def _context() -> Any:
    """A fork server, which imports torch once for all ranks and has no threads."""
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def _rank(
    work: bytes, pipes: list[Any], rank: int, world: int, folder: str, device: str, timeout: float, pipe: Any,
    outputs: list[Any], line: Any, host: str | None,
) -> None:  # fmt: skip
    """The life of one rank's process."""
    for fd, output in enumerate(outputs, start=1):
        os.dup2(output.fileno(), fd)
        output.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the launcher, which ends this process
    board.die_with(pipe)
    if sys.platform == "linux":  # processes that load data are this one's children, and end with it
        multiprocessing.set_start_method("fork", force=True)
    parent.line = line
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank),
                   "LOCAL_WORLD_SIZE": str(world)}  # fmt: skip
    board.own = Board(Path(folder) / str(rank))
    board.own.note(0, "(starting)")
    heartbeat(board.own, timeout)
    try:
        if host is not None:
            enter(host)
        pin(rank, device)
        join(device, timeout, f"{folder}/store")
        quieten(rank)
        function, args = pack.loads(work, pipes)
        result = function(*args)
        board.own.note(0, "(at the end)")
        leave()
        _tell(pipe, (True, result if rank == 0 else None))
    except BaseException as error:
        _tell(pipe, (False, (board.failure_of(error, rank), error if isinstance(error, LpError) else None)))
        sys.stdout.flush()
        sys.stderr.flush()
        for child in cpu.children(os.getpid()):  # processes that load data would tell that this one is gone
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        os._exit(1)  # destructors of a broken process group can block


def _tell(pipe: Any, message: Any) -> None:
    """Send to the launcher, not by torch's pickle, which shares memory that ends with this process."""
    pipe.send_bytes(pack.dumps(message, "the result"))


def quieten(rank: int) -> None:
    """What torch says of every DataLoader in every pass and rank is said once, by rank 0. How many cores a rank sees is
    our doing, so advice that rests on it is left out."""
    for text in REPEATED:
        warnings.filterwarnings("once" if rank == 0 else "ignore", text)
    for text in (r"This DataLoader will create", r"This process .* is multi-threaded"):
        warnings.filterwarnings("ignore", text)
