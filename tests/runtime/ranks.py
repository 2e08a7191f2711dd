"""What gloo processes do in `test_distributed`, and how tests start such processes."""

from __future__ import annotations

import copy
import os
import socket

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

from lpcompile.errors import TrainingError, UsageError
from tests.runtime.small import any_auxnets, batches, compiled, norm_mlp, sgd


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def started_once(factory, run_rank):
    """The folder into which K processes of `run_rank` wrote what they ended with; they are started once for each K, and
    for what else is given to them.

    Processes that failed are not started again either: the first test says why, the others lack its files.
    """
    done = {}

    def get(K, *more):
        if (key := (K, *more)) not in done:
            done[key] = factory.mktemp(f"gloo{K}")
            mp.spawn(run_rank, (K, free_port(), str(done[key]), *more), nprocs=K)
        return done[key]

    return get


def environment(rank: int, K: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(K), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def trainer(K, method="penalty", seed=0, **options):
    x, _ = batches(1, dtype=torch.float32)[0]
    program = compiled(norm_mlp(seed=seed), K, x)
    return program.trainer(F.cross_entropy, optimizer=sgd, method=method, auxnets=any_auxnets(program, seed), **options)


def check(rank: int, K: int, port: int, folder: str) -> None:
    """Several short checks in one process group; what they find is saved for the test to look at."""
    environment(rank, K, port)
    found = {}
    try:
        trainer(K, beta=1.0 + rank)
    except TrainingError as error:
        found["options"] = str(error)
    try:
        trainer(K + 1)
    except UsageError as error:
        found["too many stages"] = str(error)
    t = trainer(K, seed=rank)  # different weights on every rank at first
    held = {p for m in (t.program.module, *t.program.stages) for p in m.parameters() if p.device.type != "meta"}
    found["held"] = sum(p.numel() for p in held)
    found["own"] = sum(p.numel() for p in t.workers[0].stage.module.parameters())
    found["start"] = t.state_dict()
    found["needs"] = t.needs
    data = batches(4, dtype=torch.float32)
    for x, y in data[:2]:
        t.step(x if t.needs["inputs"] else None, y if t.needs["targets"] else None, size=len(y))
    state = copy.deepcopy(t.state())
    for x, y in data[2:]:
        t.step(x, y)
    found["end"] = t.state_dict()
    again = trainer(K, seed=5)
    again.load_state(state)
    for x, y in data[2:]:
        again.step(x, y)
    found["resumed"] = again.state_dict()
    again.load_state_dict(found["start"])
    found["loaded"] = again.state_dict()
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()
