"""Small models, AuxNets and programs for the runtime's tests."""

from __future__ import annotations

import dataclasses
import random
from types import SimpleNamespace

import torch
from torch import nn

import lpcompile
from lpcompile.runtime.methods import HELPERS, METHODS


class Block(nn.Module):
    """x + tanh(linear(x)), in float64 or not."""

    def __init__(self, width=6, dtype=torch.float64):
        super().__init__()
        self.linear = nn.Linear(width, width, dtype=dtype)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class NormBlock(nn.Module):
    def __init__(self, width=6, dropout=0.0):
        super().__init__()
        self.linear, self.norm, self.dropout = nn.Linear(width, width), nn.BatchNorm1d(width), nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(torch.relu(self.norm(self.linear(x))))


class Wide(nn.Module):
    """Carries a stream, a running sum, and integer ids over every cut."""

    def __init__(self, depth=6, width=6):
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(2 * width, 4)

    def forward(self, x, ids):
        total = torch.zeros_like(x)
        shifted = ids * 2 % 10
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) + self.embed(shifted)
            total = total + x * 0.5
        return {"logits": self.head(torch.cat([x, total], 1)), "ids": ids}


def mlp(depth=6, width=6, dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*[Block(width, dtype) for _ in range(depth)], nn.Linear(width, 3, dtype=dtype))


def norm_mlp(depth=6, dropout=0.0, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(*[NormBlock(6, dropout) for _ in range(depth)], nn.Linear(6, 3))


def compiled(model, K, x, hosts=None, **options):
    """A program whose AuxNets run where `hosts` says."""
    options = {"method": "multiplier", **options}
    program = lpcompile.parallelize(model, K, example_inputs=x, cost="flops", gate=False, **options)
    if hosts is not None:
        plan = program.plan
        boundaries = tuple(
            dataclasses.replace(b, aux=dataclasses.replace(b.aux, rank=h))
            for b, h in zip(plan.boundaries, hosts, strict=True)
        )
        plan = dataclasses.replace(plan, boundaries=boundaries)
        program.__dict__["_lp_done"] = program._lp_done._replace(plan=plan)
    return program


def bare_plan(K, method, hosts=None):
    """As much of a plan on K ranks as a schedule depends on. hosts: of the AuxNets, by default none."""
    ranks = {**METHODS, **HELPERS}[method].ranks(K)
    stages = len(ranks) or K
    hosts = [-1] * (stages - 1) if hosts is None or ranks else hosts
    boundaries = tuple(SimpleNamespace(index=k, aux_rank=host) for k, host in enumerate(hosts, start=1))
    return SimpleNamespace(K=stages, world=K, ranks=ranks, boundaries=boundaries)


def linear_auxnets(K, width=6, dtype=torch.float64, norm=False, seed=5):
    torch.manual_seed(seed)
    nets = [nn.Linear(width, width, dtype=dtype) for _ in range(K - 1)]
    return [nn.Sequential(net, nn.BatchNorm1d(width)) for net in nets] if norm else nets


def batches(count=4, size=8, width=6, dtype=torch.float64, last=None, seed=3):
    g = torch.Generator().manual_seed(seed)
    sizes = [size] * (count - 1) + [last or size]
    return [(torch.randn(n, width, generator=g, dtype=dtype), torch.randint(0, 3, (n,), generator=g)) for n in sizes]


class Recorder(torch.optim.SGD):
    """Does not move, and adds up the gradients that it is given."""

    def __init__(self, parameters, lr=0.0):
        super().__init__(parameters, lr)
        self.sums = {}
        self.calls = 0

    def step(self, closure=None):
        self.calls += 1
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                self.sums[p] = self.sums.get(p, 0) + p.grad.clone()


def recorded(trainer):
    """Gradient sums by parameter over all optimizers of all ranks."""
    return {p: g for w in trainer.workers for o in w.updater.optimizers().values() for p, g in o.sums.items()}


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def random_hosts(K, seed):
    draw = random.Random(seed)
    return [draw.choice((k - 1, k)) for k in range(1, K)]


class Ids(nn.Module):
    """Every stage takes the ids itself, and they come out again beside what was made with them."""

    def __init__(self, ids=50, depth=6):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ids, 6) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(depth))
        self.end = nn.Linear(6, 3)

    def forward(self, x, ids):
        for table, layer in zip(self.tables, self.layers, strict=True):
            x = x + torch.tanh(layer(x)) * table(ids)
        return {"logits": self.end(x), "ids": ids}


class Routed(nn.Module):
    """Codes found in the first layer choose rows in all later ones: integers cross every boundary."""

    def __init__(self, depth=6, width=6):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.tables = nn.ModuleList(nn.Embedding(width, width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        codes = self.first(x).argmax(1)
        for table, layer in zip(self.tables, self.layers, strict=True):
            x = x + torch.tanh(layer(x)) * table(codes)
        return self.head(x)


class AnyAux(nn.Module):
    """Whatever a boundary carries, from the first row of floats among what comes in."""

    def __init__(self, specs):
        super().__init__()
        self.kinds = [(s.is_float, s.dtype) for s in specs]
        self.layers = nn.ModuleList(nn.Linear(6, s.shape[-1]) for s in specs)

    def forward(self, *given):
        x = next(t for t in given if t.is_floating_point())
        made = tuple(
            layer(x).to(dtype) if is_float else layer(x)[:, 0].abs().clamp(0, 5).to(dtype)
            for layer, (is_float, dtype) in zip(self.layers, self.kinds, strict=True)
        )
        return made[0] if len(made) == 1 else made


def any_auxnets(program, seed=5):
    torch.manual_seed(seed)
    return [AnyAux(b.specs) for b in program.plan.boundaries]
