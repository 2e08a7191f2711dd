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
from lpcompile.runtime.checkpoint import storage
from lpcompile.runtime.comm import transport as comm
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from tests.runtime.small import any_auxnets, batches, compiled, mlp, norm_mlp, sgd

METHODS = {
    "bp": {},
    "gpipe": {},
    "1f1b": {"micro": 4, "accumulate": 2},
    "zb": {"micro": 4},
    "penalty": {"noise": 0.1, "beta": "adaptive"},
    "penalty-stored": {},
    "lagrangian": {},
    "multiplier": {"micro": 2, "accumulate": 2},
    "dgl": {"micro": 2, "reconstruct": 0.5},
    "pipedream": {"micro": 2, "accumulate": 2},
    "2bw": {"method": "pipedream", "stash": "2bw", "clip": 0.5, "clip_scope": "global"},
    "fr": {},
    "recipe": {"method": "1f1b[micro=2]@2steps,warmup@+2steps,multiplier[micro=2]@0.6,stream[micro=2]"},
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


def auxnet_state(t):
    nets = [(k, net.module) for w in t.workers for k, net in w.auxnets.items()]
    nets += [("head", w.head.net.module) for w in t.workers if w.head is not None]
    return {f"{k} {n}": v for k, module in nets for n, v in module.state_dict().items()}


def straight(K, folder):
    """Each method without a break, with checkpoints on the way; what came out, by method."""
    found = {}
    for name, options in METHODS.items():
        torch.manual_seed(5)
        t = trainer(K, **{"method": name, **options})
        run(t, shuffled(), 2, watch=LoopOptions(save=f"{folder}/{name}", save_every=3, keep=9, evaluate_every=0))
        found[name] = {**t.state_dict(), **auxnet_state(t)}
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
        run(t, shuffled(), 2, watch=LoopOptions(save=str(own), save_every=3, keep=9, resume=True, evaluate_every=0))
        found[name] = {**t.state_dict(), **auxnet_state(t)}
    return found


def at_another_K(K, folder):
    t = trainer(K, "multiplier", seed=9, micro=2, accumulate=2)
    t.load(f"{folder}/multiplier")
    moments = {name: s["exp_avg"] for w in t.workers for name, p in w.stage.module.named_parameters()
               for q, s in w.updater.optimizer.state.items() if q is p}  # fmt: skip
    state, lr = {name: v.clone() for name, v in t.state_dict().items()}, t.lr
    t.step(*batches(1, dtype=torch.float32)[0])
    t.flush()
    return state, moments, t.steps, lr


def of_another_model(K, folder):
    try:
        trainer(K, model=mlp(dtype=torch.float32)).load(folder)
    except UsageError as error:
        return str(error)
    return ""


class Accident:
    """Something that happens to one rank at one step, in one place: it is killed, stopped, or raises."""

    def __init__(self, where, step=3, sig=signal.SIGKILL):
        self.where, self.step, self.sig, self.now = where, step, sig, 0

    def here(self, where, rank):
        if where == self.where and dist.get_rank() == rank and self.now == self.step:
            os.kill(os.getpid(), self.sig)
            time.sleep(60)

    def loss(self, output, target):
        self.here("forward", 1)
        if self.where in ("raise", "usage") and self.now == self.step:
            raise ValueError("the loss is broken") if self.where == "raise" else TrainingError("nothing to learn")
        output.register_hook(lambda g: self.here("backward", 1)) if output.requires_grad else None
        return F.cross_entropy(output, target)

    def send(self, transport, *args):
        self.here("sending", 0)
        return SEND(transport, *args)

    def save_file(self, tensors, file):
        WRITE(tensors, file)
        self.here("saving", 1)


SEND, WRITE = comm.Distributed.send, storage.save_file


def killed(where, folder, resume=False, sig=signal.SIGKILL):
    """Train with checkpoints every second step, and have an accident on the way."""
    torch.manual_seed(5)
    accident = Accident(where, 4 if where == "saving" else 3, sig)
    comm.Distributed.send = lambda self, *args: accident.send(self, *args)
    storage.save_file = accident.save_file
    program = compiled(Net(), 2, batches(1, dtype=torch.float32)[0][0])
    t = program.trainer(accident.loss, optimizer=adam, auxnets=any_auxnets(program, 0), method="multiplier", micro=2)

    def note(metrics):
        accident.now = t.steps

    run(t, shuffled(), 2, watch=LoopOptions(save=folder, save_every=2, resume=resume, evaluate_every=0), on_step=note)
    return t.state_dict()


def all_replicated(K, replicas, cases):
    """Each case on this replica's part of every batch: weights, evaluation, and whether all replicas are alike."""
    return [refused(), *(replicated(K, replicas, *case) for case in cases)]


def replicated(K, replicas, method, options):
    data = batches(4)
    program = compiled(mlp(), K, data[0][0])
    t = program.trainer(F.cross_entropy, optimizer=sgd, method=method, auxnets=linear(K), replicas=replicas, **options)
    this = t.first_rank // K
    for x, y in data:
        t.step(x[this::replicas], y[this::replicas])
    state, shown = t.state_dict(), t.evaluate(data)
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, (state, shown, t.main))
    alike = all(torch.equal(state[n], other[n]) for other, _, _ in found for n in state)
    return state, shown, [alike, [m for _, _, m in found].count(True) == 1, all(s == shown for _, s, _ in found)]


def dealt(count):
    """The order of samples in which a whole batch has the micro-batches of two replicas together."""
    halves = [list(range(r, count, 2)) for r in range(2)]
    middle = len(halves[0]) // 2
    return [i for part in (slice(None, middle), slice(middle, None)) for h in halves for i in h[part]]


def refused():
    try:
        replicated(2, 2, "penalty-stored", {})
    except UsageError as error:
        return str(error)
    return ""


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
    return run(t, shuffled(), 2, test=shuffled(), watch=LoopOptions(
        log=f"{folder}/log.jsonl", log_every=2, trace=f"{folder}/trace.json"))  # fmt: skip


def endless(folder):
    Path(folder, f"pid{dist.get_rank()}").write_text(str(os.getpid()))
    t = trainer(2, "penalty")
    for _ in range(100_000):
        t.step(*batches(1, dtype=torch.float32)[0])


class Slow(torch.utils.data.Dataset):
    """Notes the process that loads it, which computes for some seconds over its first sample."""

    def __init__(self, folder, seconds=0.0):
        self.folder, self.seconds = folder, seconds

    def __len__(self):
        return 64

    def __getitem__(self, i):
        file = Path(self.folder, f"loader{os.environ['RANK']}")
        end = time.process_time() + (0.0 if file.exists() else self.seconds)
        file.write_text(str(os.getpid()))
        while time.process_time() < end:
            pass
        return torch.full((6,), float(i)), i % 3


def loading(folder, seconds=0.0, epochs=10_000):
    """Train on data that a process of its own loads for each rank."""
    Path(folder, f"pid{dist.get_rank()}").write_text(str(os.getpid()))
    t = trainer(2, "bp")
    loader = DataLoader(Slow(folder, seconds), 8, num_workers=1)
    run(t, loader, epochs, watch=LoopOptions(evaluate_every=0, train_batches=0))
    return t.steps
