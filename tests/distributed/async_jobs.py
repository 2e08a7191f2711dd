"""What the ranks of the tests of `dgl-async` do: one of them stands still until another has done all its steps."""

from __future__ import annotations

import datetime
import threading

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from lpcompile.runtime.comm.transport import MAX_SENDS_IN_FLIGHT
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from tests.runtime.small import Ids, batches, compiled, norm_mlp, sgd

STEPS = 30  # many more than a buffer or the wire hold


def store():
    return dist.distributed_c10d._get_default_store()


class Still:
    """A loss that stands still on one rank, at one call of a step, until somebody says that another rank is through.

    Calls without gradients do not count: they only measure what the loss is a mean over, before the first step.
    """

    def __init__(self, rank=None, call=0):
        self.rank, self.call, self.calls = rank, call, 0

    def __call__(self, output, target):
        if torch.is_grad_enabled():
            if dist.get_rank() == self.rank and self.calls == self.call:
                store().wait(["through"], datetime.timedelta(seconds=40))
            self.calls += 1
        return F.cross_entropy(output, target)


def one_stands_still(still, call):
    """Steps on two ranks, of which one stands still; what each has seen of the other."""
    data = batches(STEPS, dtype=torch.float32, last=5)
    program = compiled(norm_mlp(), 2, data[0][0], method="dgl-async")
    trainer = program.trainer(Still(still, call), optimizer=sgd, buffer=4)
    metrics = [trainer.step(x, y) for x, y in data]
    if dist.get_rank() != still:
        store().set("through", "yes")
    trainer.flush()
    quiet = [t for t in threading.enumerate() if t.name.startswith("replay")]
    after = trainer.step(*data[0])  # buffers are empty and threads have ended: all begins again
    state = trainer.state_dict()
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, (metrics, len(quiet), after, state))
    return found


def runs_ahead():
    """`dgl`: rank 1 stands still in its first loss until rank 0 is as far ahead as it may be."""
    data = batches(2 * MAX_SENDS_IN_FLIGHT, dtype=torch.float32)
    program = compiled(norm_mlp(), 2, data[0][0], method="dgl")
    trainer = program.trainer(Still(1, 0), optimizer=sgd)
    held = []
    for i, (x, y) in enumerate(data):
        trainer.step(x, y)
        held.append(sum(map(len, trainer.transport.sending.values())))
        if i + 1 == MAX_SENDS_IN_FLIGHT and trainer.rank == 0:
            store().set("through", "yes")
    return held, trainer.state_dict()


def together(output, target):
    """Whatever was drawn: inputs and targets belong to each other."""
    assert torch.equal(output["ids"], target["ids"]) and target["none"] is None and target["name"] == "digits"
    return F.cross_entropy(output["logits"], target["y"])


def three_ranks():
    """Ids as inputs of all stages, targets with a structure, micro-batches of several sizes."""
    torch.manual_seed(0)
    data = batches(9, size=7, dtype=torch.float32, last=5)
    ids = [torch.randint(0, 50, (len(y),)) for _, y in data]
    program = compiled(Ids(), 3, (data[0][0], ids[0]), method="dgl-async", max_width=1)
    trainer = program.trainer(together, optimizer=sgd, micro=2, buffer_policy="random")
    needs = trainer.needs
    for (x, y), i in zip(data, ids, strict=True):
        target = {"ids": i, "y": y, "none": None, "name": "digits"}
        # nothing of another rank's own batch is used
        metrics = trainer.step((x, i), target) if trainer.rank == 0 else trainer.step(None, size=len(y))
    found = [None] * 3
    dist.all_gather_object(found, (needs, trainer.gather(metrics), trainer.state_dict()))
    return found


def saved_and_resumed(folder):
    """Checkpoints on the way, and a new trainer that goes on from one; the model's keys at the end."""
    g = torch.Generator().manual_seed(3)
    x, y = torch.randn(32, 6, generator=g), torch.randint(0, 3, (32,), generator=g)
    loader = DataLoader(TensorDataset(x, y), 8, shuffle=True)
    watch = LoopOptions(save=folder, save_every=3, resume=True, evaluate_every=1)
    shown = []
    for epochs in (1, 3):
        program = compiled(norm_mlp(seed=epochs), 2, x[:8], method="dgl-async")
        trainer = program.trainer(F.cross_entropy, optimizer=sgd)
        shown.append(run(trainer, loader, epochs, test=loader, watch=watch))
    return shown, trainer.steps, trainer.state_dict()


class Broken(Still):
    def __call__(self, output, target):
        self.calls += 1
        if dist.get_rank() == 0 and self.calls == 4:
            raise ValueError("the loss is broken")
        return F.cross_entropy(output, target)


def one_fails():
    data = batches(1, dtype=torch.float32)
    program = compiled(norm_mlp(), 2, data[0][0], method="dgl-async")
    trainer = program.trainer(Broken(), optimizer=sgd)
    for _ in range(100_000):
        trainer.step(*data[0])
