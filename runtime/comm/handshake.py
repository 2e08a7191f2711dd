"""Before the first step: processes join a group and compare their versions, plans and options."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from lpcompile.errors import TrainingError
from lpcompile.runtime.comm.mesh import Mesh
from lpcompile.runtime.launch import launch


def in_torchrun() -> bool:
    """Whether this process is one of several ranks, by torchrun's environment variables or by an open process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def join(K: int, replicas: int, device: torch.device) -> Mesh:
    """This process's place among K stages, of so many replicas."""
    launch.join(device.type)
    return Mesh.open(K, replicas, device)


def own_device(model_device: torch.device, given: torch.device | str | None) -> torch.device:
    """This process's device: its own GPU of the machine, or the model's device."""
    device = torch.device(given) if given is not None else model_device
    if device.type == "cuda" and in_torchrun():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device


def compare(facts: dict[str, Any], group: Any) -> None:
    """All ranks must be about to do the same; the first difference is named once, on every rank alike."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, facts, group=group)
    for name, mine in everyone[0].items():
        for rank, other in enumerate(everyone):
            if other.get(name) != mine:
                raise TrainingError(
                    f"the ranks do not agree on the {name}: rank 0 has {mine}, rank {rank} has {other.get(name)}; "
                    f"{ADVICE.get(name, 'start all ranks with the same script and arguments')}"
                )


def merge(facts: dict[str, Any], group: Any) -> dict[str, Any]:
    """Metrics of all ranks: the longest times, the sum of bytes, else the last rank's value."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, facts, group=group)
    together = {name: value for found in everyone for name, value in found.items()}
    for name in together:
        values = [found[name] for found in everyone if name in found]
        if name == "bytes":
            together[name] = sum(values)
        elif name.endswith(" ms"):
            together[name] = max(values)
    return together


ADVICE = {
    "plan": "make it once and share it, or compile with cost='flops', which gives the same plan everywhere",
    "torch version": "install the same version for all ranks",
    "lpcompile version": "install the same version for all ranks",
}
