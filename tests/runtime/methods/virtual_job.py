"""What gloo processes do in `test_virtual_stages`: K ranks with two stages each, trained as in one process."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.runtime.methods import METHODS
from tests.runtime.ranks import environment
from tests.runtime.small import batches, compiled, norm_mlp, sgd

VIRTUAL = [m.name for m in METHODS.values() if m.chunks > 1]
MICRO = 8


class Tied(nn.Module):
    """The last stage has the first one's table, and a second table lies in the middle and at the end."""

    def __init__(self, depth=10, width=6):
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.again = nn.Linear(width, width, bias=False)
        self.again.weight = self.blocks[depth // 2].weight
        self.head = nn.Linear(width, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.head(x + self.again(x)).transpose(1, 2)


def tokens(count=3):
    g = torch.Generator().manual_seed(0)
    return [tuple(torch.randint(0, 20, (2, 16, 5), generator=g)) for _ in range(count)]


CASES = {
    "dropout": (lambda: norm_mlp(depth=12, dropout=0.1), lambda: batches(3, 16, dtype=torch.float32)),
    "tied": (Tied, tokens),
}


def trainer_of(name, method, K, **options):
    make, data = CASES[name]
    torch.manual_seed(0)
    program = compiled(make(), K, data()[0][0], method=method)
    return program.trainer(F.cross_entropy, optimizer=sgd, **{"micro": MICRO, "clip": 1.0, **options}), data()


def train(name, method, K):
    """Weights, loss and evaluation after a few steps; and the same from a checkpoint in the middle."""
    trainer, data = trainer_of(name, method, K)
    metrics = [trainer.gather(trainer.step(x, y)) for x, y in data]
    shown = trainer.evaluate(data, recalibrate=data)
    return {"model": trainer.state_dict(), "loss": [m["loss"] for m in metrics], "evaluation": shown}


def run_rank(rank: int, K: int, port: int, folder: str) -> None:
    environment(rank, K, port)
    for method in VIRTUAL:
        for name in CASES:
            found = train(name, method, K)
            if rank == 0:
                torch.save(found, f"{folder}/{name}-{method}.pt")
        trainer, data = trainer_of("dropout", method, K)
        for x, y in data[:2]:
            trainer.step(x, y)
        trainer.save(f"{folder}/{method}")
        trainer.step(*data[2])
        state = trainer.state_dict()
        if rank == 0:
            torch.save(state, f"{folder}/{method}-saved.pt")
        again, _ = trainer_of("dropout", method, K)
        again.load(f"{folder}/{method}")
        again.step(*data[2])
        state = again.state_dict()
        if rank == 0:
            torch.save(state, f"{folder}/{method}-resumed.pt")
    torch.distributed.destroy_process_group()
