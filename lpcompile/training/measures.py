"""Facts that every measurement reports: the machine, the memory that stays between steps, why a run has no figures."""

from __future__ import annotations

import datetime
import os
from typing import Any

import torch
from torch import nn

from lpcompile.errors import LpError, TrainingError
from lpcompile.runtime.engine import memory
from lpcompile.runtime.engine.worker import Worker

PER_STEP = ("gradients", "versions", "activations")  # memory that every step allocates anew


def machine() -> dict[str, Any]:
    """Date, torch version and number of cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"date": datetime.date.today().isoformat(), "torch": torch.__version__, "cores": cores}


def bytes_between_steps(worker: Worker) -> int:
    """Bytes that a rank of ours keeps from step to step."""
    return sum(size for name, size in memory.of(worker).items() if name not in PER_STEP)


def bytes_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, buffers and optimizer state in this process."""
    states = [t for s in optimizer.state.values() for t in s.values()]
    tensors = [t for t in (*model.parameters(), *model.buffers(), *states) if isinstance(t, torch.Tensor)]
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum(t.nbytes for t in local if t.device.type != "meta")


def reason(error: LpError) -> str:
    """Why a row of a table has no figures: the run failed, or could not start."""
    return f"failed: {error}" if isinstance(error, TrainingError) else f"cannot: {error}"
