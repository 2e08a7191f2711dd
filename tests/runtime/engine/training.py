"""Short training runs for the engine's tests, and training as a user writes it."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from tests.runtime.small import Wide, any_auxnets, batches, compiled, sgd


def data(count=5, **options):
    return batches(count, dtype=torch.float32, **options)


def adam(parameters):
    return torch.optim.AdamW(parameters, 0.01)


def plain(model, data, make=sgd, clip=None, loss=F.cross_entropy, scheduler=None):
    """Training as a user writes it."""
    model = copy.deepcopy(model).train()
    optimizer = make(list(model.parameters()))
    lr = scheduler(optimizer) if scheduler else None
    for x, y in data:
        optimizer.zero_grad()
        out = model(*x) if isinstance(x, tuple) else model(x)
        loss(out, y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if lr:
            lr.step()
    return model.state_dict()


def trainer_of(model, K, x, method="bp", loss=F.cross_entropy, make=sgd, **options):
    program = compiled(model, K, x, **({"max_width": 3} if isinstance(model, Wide) else {}))
    if K > 1 and "auxnets" not in options and method != "bp":
        options["auxnets"] = any_auxnets(program)
    return program.trainer(loss, optimizer=make, method=method, **options)


def run(trainer, data):
    metrics = [trainer.step(x, y, torch.arange(len(y))) for x, y in data]
    return trainer.state_dict(), metrics


def assert_same(left, right):
    assert list(left) == list(right)
    for name in left:
        assert torch.equal(left[name], right[name]), name
