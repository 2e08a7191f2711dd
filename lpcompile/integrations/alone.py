"""A rank that transformers and accelerate take for a single process, of which only rank 0 writes.

They would otherwise give every process other samples and average gradients over them. Here all ranks run the same loop
over the same batches, and only the stages between them are divided.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from lpcompile.errors import UsageError
from lpcompile.runtime.launch import launch

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def join(K: int, device: str) -> int:
    """Join the other ranks; gives this process's rank."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world != K:
        raise UsageError(f"K={K} are {K} ranks, but {world} processes were started; use torchrun --nproc-per-node {K}")
    if not dist.is_initialized():
        launch.pin(int(os.environ.get("LOCAL_RANK", rank)), device)
        launch.join(device)
    elif device == "cpu":
        torch.set_num_threads(1)
    return rank


def leave_alone(args: Any, rank: int) -> None:
    """Tell accelerate, and the TrainingArguments, that this is the only process; `process_index` stays the rank."""
    from accelerate.state import AcceleratorState, PartialState

    device = torch.device("cpu") if args.use_cpu or not torch.cuda.is_available() else torch.device("cuda", _local())
    AcceleratorState._reset_state(True)
    PartialState._reset_state()
    with _no_ranks():
        state = PartialState(cpu=device.type == "cpu")
    state.process_index = state.local_process_index = rank
    state.device = device
    args.distributed_state = state
    args.__dict__["__cached__setup_devices"] = device
    args._n_gpu = 0 if device.type == "cpu" else 1


def _local() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextlib.contextmanager
def _no_ranks() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ |= kept
