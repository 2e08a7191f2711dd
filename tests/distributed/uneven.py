"""A training script whose ranks do not agree, in one of several ways: `-m tests.distributed.uneven K METHOD HOW`."""

from __future__ import annotations

import functools
import os
import sys

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.training.job import Job
from lpcompile.training.train import train_rank
from tests.runtime.small import compiled, norm_mlp


def main(K, method, how):
    """One rank; gives the accuracy of training that went well."""
    torch.set_num_threads(1)
    odd = os.environ["RANK"] == str(K - 1)
    if how in ("seed", "save"):
        watch = LoopOptions(save="run" if odd and how == "save" else None)
        return train_rank(Job("resnet20", K=K, method=method, seed=7 if odd and how == "seed" else 0, watch=watch))
    g = torch.Generator().manual_seed(1)
    x = torch.randn(512, 6, generator=g)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    count = 448 if odd and how == "longer" else 512
    data = TensorDataset(x[:count], y[:count], torch.arange(count))
    workers = 1 if how == "workers" else 0
    generator = torch.Generator() if how == "generator" else None
    if generator is not None:
        generator.seed()
    loader = DataLoader(data, 32, shuffle=True, num_workers=workers, generator=generator)
    program = compiled(norm_mlp(), K, x[:32], method=method)
    torch.seed()  # another one on every rank, as in a script without a seed
    rate = 0.1 if odd and how == "rate" else 0.05
    given = {"optimizer": lambda ps: torch.optim.SGD(ps, rate, momentum=0.9), "method": method}
    if odd and how == "scheduler":
        given["scheduler"] = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3)
    if how in ("milestones", "factor"):
        given["scheduler"] = functools.partial(scheduler, how, odd)
    if how == "layers":
        given["optimizer"] = lambda ps: torch.optim.SGD([{"params": [p], "lr": 0.1 / p.dim()} for p in ps], 0.1)
    epochs = 2 if how == "workers" else 6  # they are slow to start
    test = DataLoader(data, 64, shuffle=True)
    if how in ("fit", "workers", "generator", "longer"):
        found = program.fit(F.cross_entropy, loader, epochs, test=test, timeout=30, **given)
        whole = program.module.eval()(x).argmax(1) == y  # every rank has all weights again, to go on with
        assert count < len(x) or abs(whole.double().mean() - found.accuracy) < 1e-6
        return found["test accuracy"]
    trainer = program.trainer(F.cross_entropy, **given)
    if how in ("trainer.fit", "layers"):
        trainer.fit(loader, 6)
    elif how != "evaluation":
        by_hand(trainer, loader if how == "unseeded" else DataLoader(data, 32), how, odd)
    return trainer.evaluate(loader if how == "evaluation" else DataLoader(data, 32))["accuracy"]


def scheduler(how, odd, optimizer):
    if how == "milestones":
        return torch.optim.lr_scheduler.MultiStepLR(optimizer, [5 if odd else 9])
    factor = 0.5 if odd else 0.9
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor**step)


def by_hand(trainer, loader, how, odd):
    """A loop of the user's own."""
    for at, (x, y, index) in enumerate(loader):
        if how == "ends" and odd and at == 3:
            break
        n = 24 if how == "smaller" and odd and at == 3 else 40 if how == "larger" and odd and at == 3 else len(x)
        x, y, index = (torch.cat([t, t])[:n] for t in (x, y, index))
        y = y.roll(1) if how == "later" and odd and at == 3 else y
        trainer.step(x if trainer.needs["inputs"] else None, y, index, size=len(y))
        if how == "alone" and not odd and at == 13:
            trainer.evaluate(loader)


if __name__ == "__main__":
    sys.stdout.write(f"RESULT {main(int(sys.argv[1]), sys.argv[2], sys.argv[3])}\n")
