"""The identity of a process: machine, PID and start time, since a PID alone may have been reused."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Any

Identity = dict[str, Any]


def identity(pid: int | None = None) -> Identity | None:
    """Machine, number and start of a process (this one by default); None if it is gone or the system does not tell."""
    number = os.getpid() if pid is None else pid
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if stat[0] == "Z":
        return None
    return {"host": socket.gethostname(), "boot": boot, "pid": number, "began": stat[19]}


def sibling(rank: int) -> Identity | None:
    """The rank that the launcher of this process started beside it on this machine, by its environment."""
    for file in Path("/proc").glob(f"{os.getppid()}/task/*/children"):
        for pid in file.read_text().split():
            with contextlib.suppress(OSError):
                if f"RANK={rank}" in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0"):
                    return identity(int(pid))
    return None


def is_stopped(process: Identity | None) -> bool:
    """Whether the process is suspended, as by SIGSTOP."""
    if process is None or process != identity(process["pid"]):
        return False
    stat = Path(f"/proc/{process['pid']}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


def kill(process: Identity | None) -> None:
    """Kill the process of this identity, also if it is suspended; do nothing if it is gone or on another machine."""
    if process is not None and process == identity(process["pid"]):
        with contextlib.suppress(OSError):
            os.kill(process["pid"], signal.SIGKILL)
