"""What gloo processes do in `test_pipelines`: torch's own pipeline engine on our stage modules."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

from lpcompile.runtime.methods import METHODS
from tests.runtime.small import batches, compiled, mlp

MICRO = 4  # a power of two: torch scales the sum of gradients, we scale each loss


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, mask[:, None, :]))


class Masked(nn.Module):
    """A small transformer whose every block, so every stage, needs the mask that is an input of the model."""

    def __init__(self, depth=5, width=8):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.blocks = nn.ModuleList(Attention(width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, ids, mask):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x.mean(1))


def tokens(size=8, length=5):
    g = torch.Generator().manual_seed(7)
    mask = torch.rand(size, length, generator=g) > 0.3
    mask[:, 0] = True
    return torch.randint(0, 20, (size, length), generator=g), mask


def check(rank, ports, folder):
    """The gradients that torch's engine gives this rank's stage, for each K with its port."""
    torch.set_num_threads(1)
    for K, port in ports.items():
        if rank < K:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            dist.init_process_group("gloo", rank=rank, world_size=K)
            torch.save(gradients(rank, K), f"{folder}/{K}-{rank}.pt")
            dist.destroy_process_group()


def gradients(rank, K):
    """By model and method, and by the parameter's name."""
    found = {}
    x, y = batches(1)[0]
    for model, make, inputs in (("mlp", mlp, (x,)), ("masked", Masked, tokens())):
        torch.manual_seed(0)
        program = compiled(make(), K, inputs).train()
        own = [inputs[i] for i in program.stages[rank]._lp_io[True].inputs]
        given = dict(zip(program.plan.stages[rank].inputs, own, strict=True))
        first, later = (own, {}) if rank == 0 else ((), given)
        for method, name in (
            (m.name, m.torch_schedule) for m in METHODS.values() if m.torch_schedule and m.chunks == 1
        ):
            stage = PipelineStage(program.stages[rank], rank, K, torch.device("cpu"))
            engine = getattr(schedules, name)([stage] if method == "zb" else stage, MICRO, loss_fn=F.cross_entropy)
            engine.step(*first, target=y if rank == K - 1 else None, **later)
            found[model, method] = {n: p.grad for n, p in program.module.named_parameters() if p.grad is not None}
            program.module.zero_grad()
    return found
