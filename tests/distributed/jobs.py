"""What the ranks of these tests do: small models, few steps. Each function runs once in every process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lpcompile.errors import TrainingError, UsageError
from lpcompile.runtime import checkpoint, comm, storage
from lpcompile.runtime.loop import Watch, run
from tests.runtime.small import any_auxnets, batches, compiled, mlp, norm_mlp, sgd

METHODS = {
    "bp": {},
    "penalty": {"noise": 0.1, "beta": "adaptive"},
    "penalty-stored": {},
    "lagrangian": {},
    "multiplier": {"micro": 2, "accumulate": 2},
    "warm-up": {"method": "multiplier", "warmup": 7, "autocast": torch.float16, "micro": 2},
}
STEPS = 8  # two epochs of four


def adam(parameters):
    return torch.optim.AdamW(parameters, 0.01)


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, 40)


class Net(nn.Module):
    """With dropout and running statistics, so that every random stream and buffer counts."""

    def __new__(cls, seed=0):
        return norm_mlp(dropout=0.2, seed=seed)


def shuffled(seed=3):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(32, 6, generator=g), torch.randint(0, 3, (32,), generator=g)
    return DataLoader(TensorDataset(x, y, torch.arange(32)), 8, shuffle=True)


def trainer(K, method="penalty", seed=0, model=None, optimizer=adam, **options):
    data = batches(1, dtype=torch.float32)
    program = compiled(model or Net(seed), K, data[0][0])
    options = {"method": method, "scheduler": one_cycle, **options}
    return program.trainer(F.cross_entropy, optimizer=optimizer, auxnets=any_auxnets(program, seed), **options)


def loss_parameters(t):
    return {f"{k} {n}": v for w in t.workers for k, net in w.auxnets.items() for n, v in net.module.state_dict().items()}


def straight(K, folder):
    """Each method without a break, with checkpoints on the way; what came out, by method."""
    found = {}
    for name, options in METHODS.items():
        torch.manual_seed(5)
        t = trainer(K, **{"method": name, **options})
        run(t, shuffled(), 2, watch=Watch(save=f"{folder}/{name}", save_every=3, keep=9, evaluate_every=0))
        found[name] = {**t.state_dict(), **loss_parameters(t)}
    return found


def resumed(K, folder, step):
    """Each method from its checkpoint of that step on, with other weights and seeds before it was loaded."""
    found = {}
    for name, options in METHODS.items():
        torch.manual_seed(77)
        t = trainer(K, **{"method": name, "seed": 9, **options})
        source, own = Path(folder) / name, Path(folder) / f"again {name} {step}"
        if dist.get_rank() == 0:
            own.mkdir()
            (own / f"step-{step:08d}").symlink_to(source / f"step-{step:08d}")
        dist.barrier()
        run(t, shuffled(), 2, watch=Watch(save=str(own), save_every=3, keep=9, resume=True, evaluate_every=0))
        found[name] = {**t.state_dict(), **loss_parameters(t)}
    return found


def at_another_K(K, folder):
    t = trainer(K, "multiplier", seed=9, micro=2, accumulate=2)
    t.load(f"{folder}/multiplier")
    moments = {name: s["exp_avg"] for w in t.workers for name, p in w.stage.module.named_parameters()
               for q, s in w.updater.optimizer.state.items() if q is p}  # fmt: skip
    state, lr = t.state_dict(), t.lr
    t.step(*batches(1, dtype=torch.float32)[0])
    return state, moments, t.steps, lr


def of_another_model(K, folder):
    try:
        trainer(K, model=mlp(dtype=torch.float32)).load(folder)
    except UsageError as error:
        return str(error)
    return ""


def killed(where, folder, save_every=2, resume=False, kill=3, sig=signal.SIGKILL):
    """Train; on the way rank 1 (rank 0 where it sends) kills itself at step `kill`, in the place that is asked for."""
    torch.manual_seed(5)
    at = {"step": 0}

    def die(rank, step=None):
        if dist.get_rank() == rank and at["step"] == (kill if step is None else step):
            os.kill(os.getpid(), sig)
            time.sleep(60)

    def loss(output, target):
        if where == "forward":
            die(1)
        if where == "raise" and at["step"] == kill:
            raise ValueError("the loss is broken")
        if where == "usage" and at["step"] == kill:
            raise TrainingError("nothing to learn")
        if where == "backward":
            output.register_hook(lambda g: die(1))
        return F.cross_entropy(output, target)

    t = trainer(2, "multiplier", micro=2)
    t.loss_fn = loss
    for w in t.workers:
        if w.last:
            inner = w.loss
            w.loss = lambda found, target: (loss(found[0], target), inner(found, target))[0]
    if where == "sending":
        send = comm.Distributed.send
        comm.Distributed.send = lambda self, *args: (die(0), send(self, *args))[1]
    if where == "saving":
        write = storage.save_file
        storage.save_file = lambda tensors, file: (write(tensors, file), die(1, 4))[0]
    if where == "renaming":
        storage.write_json = lambda file, data: (die(0, 4), checkpoint.write_json(file, data))[1]

    def note(metrics):
        at["step"] = t.steps

    watch = Watch(save=folder, save_every=save_every, resume=resume, evaluate_every=0)
    run(t, shuffled(), 2, watch=watch, on_step=note)
    return t.state_dict()


def replicated(K, replicas, method, options):
    """Training on this replica's half of each batch; every rank's own parameters."""
    torch.manual_seed(0)
    data = batches(4)
    program = compiled(mlp(), K, data[0][0])
    t = program.trainer(F.cross_entropy, optimizer=sgd, method=method, auxnets=linear(K), replicas=replicas, **options)
    this = t.first_rank // K
    for x, y in data:
        t.step(x[this::replicas], y[this::replicas])
    return t.state_dict(), t.evaluate(data), t.main


def linear(K):
    from tests.runtime.small import linear_auxnets

    return linear_auxnets(K)


def about_this_process():
    return {
        "cores": sorted(os.sched_getaffinity(0)), "threads": torch.get_num_threads(), "rank": dist.get_rank(),
        "world": dist.get_world_size(), "backend": dist.get_backend(), "interface": os.environ["GLOO_SOCKET_IFNAME"],
        "pid": os.getpid(),
    }  # fmt: skip


def everyone():
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, about_this_process())
    return found


def watched(folder):
    t = trainer(2, "penalty", trace=True)
    return run(t, shuffled(), 2, test=shuffled(), watch=Watch(
        log=f"{folder}/log.jsonl", log_every=2, trace=f"{folder}/trace.json"))  # fmt: skip
