"""Every method on a ResNet-20 and on a small ViT, as users run them: defaults, the program's own AuxNets and heads."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F

import lpcompile
from lpcompile.runtime.methods import METHODS, get_method
from tests.runtime.small import sgd

MODELS = {
    "resnet20": lambda: lpcompile.models.ResNet(20, 3, width=4),
    "vit": lambda: lpcompile.models.VisionTransformer(8, 4, dim=12, depth=6, heads=2, num_classes=3),
}
STEPS, BATCH = 4, 12


def train(model: str, method: str, K: int) -> dict[str, Any]:
    """A few steps: weights and what the last one said."""
    torch.manual_seed(0)
    x = torch.randn(STEPS, BATCH, 3, 8, 8)
    y = torch.randint(0, 3, (STEPS, BATCH))
    torch.manual_seed(0)
    init = "consistent" if get_method(method).aux == "auxnet" else None
    program = lpcompile.parallelize(
        MODELS[model](), K, example_inputs=x[0], method=method, cost="flops", init=init, gate=False
    )
    trainer = program.trainer(F.cross_entropy, optimizer=sgd)
    for i in range(STEPS):
        metrics = trainer.step(x[i], y[i], torch.arange(BATCH))
    return {"model": trainer.state_dict(), "loss": trainer.gather(metrics).get("loss")}


def run_rank(rank: int, K: int, port: int, folder: str, model: str) -> None:
    """One gloo process: all methods one after another."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(K), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for method in METHODS:
        found = train(model, method, K)
        if rank == 0:
            torch.save(found, f"{folder}/{method}.pt")
    torch.distributed.destroy_process_group()
