"""Facts that every measurement reports: the machine, the memory that stays between steps, why a run has no figures."""

from __future__ import annotations

import contextlib
import datetime
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lpcompile.errors import LpError, TrainingError
from lpcompile.runtime.engine import memory
from lpcompile.runtime.engine.worker import Worker

PER_STEP = ("gradients", "versions", "activations")  # memory that every step allocates anew


def machine() -> dict[str, Any]:
    """Date, torch version, number of cores and their model, and the commit of this program where it is a clone."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "cores": cores,
        "cpu": _cpu(),
        "commit": _commit(),
    }


def command() -> str:
    """The command of this process as it was typed, for tables that others want to repeat."""
    return " ".join(
        ["python -m lpcompile" if Path(sys.argv[0]).name == "__main__.py" else Path(sys.argv[0]).name]
        + [shlex.quote(one) for one in sys.argv[1:]]
    )


def on(machine: dict[str, Any]) -> str:
    """The machine, the commit and the command, as far as they are known."""
    parts = [f"torch {machine['torch']}", f"{machine['cores']} cores", machine.get("cpu"), machine["date"],
             machine.get("commit") and f"commit {machine['commit']}"]  # fmt: skip
    text = ", ".join(filter(None, parts))
    return f"{text}\n\n    {machine['command']}" if machine.get("command") else text


def _cpu() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return ""


def _commit() -> str:
    """The short commit, with + where files differ from it; "" outside of a clone."""
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        ask = ["git", "-C", str(here), "describe", "--always", "--exclude=*", "--dirty=+"]
        return subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return ""


def bytes_between_steps(team: Sequence[Worker]) -> int:
    """Bytes that a rank of ours keeps from step to step."""
    return sum(size for name, size in memory.of_rank(team).items() if name not in PER_STEP)


def bytes_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, buffers and optimizer state in this process."""
    states = [t for s in optimizer.state.values() for t in s.values()]
    tensors = [t for t in (*model.parameters(), *model.buffers(), *states) if isinstance(t, torch.Tensor)]
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum(t.nbytes for t in local if t.device.type != "meta")


def reason(error: LpError) -> str:
    """Why a row of a table has no figures: the run failed, or could not start."""
    return f"failed: {error}" if isinstance(error, TrainingError) else f"cannot: {error}"
