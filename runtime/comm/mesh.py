"""The mesh (replica, stage): stages of one replica exchange messages, replicas of one stage average gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh

from lpcompile.errors import UsageError


@dataclass(frozen=True)
class Mesh:
    """This process's coordinates. `along`: the group of its replica's stages; `across`: of its stage in all replicas.

    >>> mesh = Mesh.open(K=2, replicas=2, device=torch.device("cpu"))     # ranks 0, 1 | 2, 3
    """

    K: int
    replicas: int
    replica: int
    stage: int
    along: Any = None
    across: Any = None

    @property
    def first(self) -> int:
        """The rank of this replica's first stage."""
        return self.replica * self.K

    @staticmethod
    def open(K: int, replicas: int, device: torch.device) -> Mesh:
        world, rank = dist.get_world_size(), dist.get_rank()
        if world != K * replicas:
            each = f"{K} stages" if replicas == 1 else f"{replicas} replicas of {K} stages"
            raise UsageError(
                f"the program has {each} but {world} processes were started; start as many as stages (torchrun "
                f"--nproc-per-node {K * replicas}), or compile with K={max(world // replicas, 1)}"
            )
        if replicas == 1:
            return Mesh(K, 1, 0, rank)
        found = init_device_mesh(device.type, (replicas, K), mesh_dim_names=("replica", "stage"))
        return Mesh(K, replicas, rank // K, rank % K, found.get_group("stage"), found.get_group("replica"))

    def average(self, tensors: Iterable[Tensor | None]) -> None:
        """Replace each tensor by its mean over the replicas: one message for each dtype."""
        groups: dict[torch.dtype, list[Tensor]] = {}
        for t in tensors:
            if t is not None:
                groups.setdefault(t.dtype, []).append(t)
        for found in groups.values():
            flat = torch.cat([t.reshape(-1) for t in found])
            dist.all_reduce(flat, group=self.across)
            flat.div_(self.replicas)
            at = 0
            for t in found:
                t.copy_(flat[at : at + t.numel()].view_as(t))
                at += t.numel()

    def share(self, tensors: Iterable[Tensor]) -> None:
        """Broadcast the first replica's tensors to all, as DDP does with buffers."""
        for t in tensors:
            dist.broadcast(t, self.stage, group=self.across)
