"""Before the first step: processes join a group and compare their versions, plans and options."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist

from lpcompile.errors import TrainingError, UsageError
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.comm.mesh import Mesh
from lpcompile.runtime.launch import launch, overseer


def in_torchrun() -> bool:
    """Whether this process is one of several ranks, by torchrun's environment variables or by an open process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def join(K: int, replicas: int, device: torch.device) -> Mesh:
    """Join the process group; returns this process's place in the mesh."""
    launch.join(device.type)
    if overseer.overseer is not None:
        overseer.overseer.K = K
    return Mesh.open(K, replicas, device)


def own_device(model_device: torch.device, given: torch.device | str | None) -> torch.device:
    """This process's device: its own GPU of the machine, or the model's device."""
    try:
        device = torch.device(given) if given is not None else model_device
        torch.empty(0, device=None if device.type == "cuda" else device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).partition(". ")[0].splitlines()[0]
        raise UsageError(f"device={given!r} cannot be used here ({why}); use device='cpu' or 'cuda'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise TrainingError(f"device {device}: torch sees no GPU on this machine; use device='cpu', or install a "
                            f"torch with CUDA and its driver")  # fmt: skip
    if device.type == "cuda" and in_torchrun():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    return device


def compare(facts: dict[str, Any], group: Any) -> None:
    """Refuse to start unless all ranks have equal facts; every rank names the same first difference.

    facts: JSON data by name; a rank leaves out what it has nothing to say about.
    """
    everyone = exchange.gathered(facts, group)
    for name in dict.fromkeys(name for found in everyone for name in found):
        (first, mine), *others = [(rank, found[name]) for rank, found in enumerate(everyone) if name in found]
        for rank, other in others:
            if other != mine:
                raise TrainingError(
                    f"the ranks do not agree on the {name}: rank {first} has {mine}, rank {rank} has {other}; "
                    f"{ADVICE.get(name, 'start all ranks with the same script and arguments')}"
                )


def merge(facts: dict[str, Any], group: Any) -> dict[str, Any]:
    """Metrics of all ranks: the longest times, the sum of bytes, else the last rank's value."""
    everyone = exchange.gathered(facts, group)
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
