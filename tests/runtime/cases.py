"""Training runs that must end in the same bits in one process and over gloo; run by `test_transports`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

import lpcompile
from lpcompile import Program
from tests.runtime.small import Routed, Wide, any_auxnets, batches, compiled, norm_mlp, random_hosts, sgd


@dataclass(frozen=True)
class Case:
    """A name, a method, its options, the model, and where AuxNets run."""

    name: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    model: str = "norm"
    hosts: int = 0
    switch: str = ""
    epochs: int = 1


CASES = [
    Case("bp", "bp"),
    Case("bp dropout", "bp", model="dropout"),
    Case("bp tied", "bp", model="wide"),
    Case("gpipe", "gpipe", {"micro": 2, "clip": 0.5, "clip_scope": "global"}, "dropout"),
    Case("1f1b", "1f1b", {"micro": 4}, "resnet"),
    Case("1f1b tied", "1f1b", {"micro": 4}, "wide"),
    Case("zero bubble", "zb", {"micro": 4}, "routed"),
    Case("zero bubble tied", "zb", {"micro": 4, "autocast": torch.float16}, "wide"),
    Case("default", "auto", {"micro": 4, "clip": 0.1, "accumulate": 2}, "dropout"),
    Case("default, tied, clipped", "auto", {"micro": 3, "clip": 0.1}, "wide"),
    Case(
        "default, recomputed in bfloat16",
        "auto",
        {"micro": 2, "autocast": torch.bfloat16, "checkpoint": True},
        "resnet",
    ),
    Case("penalty", "penalty"),
    Case("penalty, mixed hosts", "penalty", {"micro": 2}, hosts=1),
    Case("penalty, noise and dropout", "penalty", {"noise": 0.1}, "dropout"),
    Case("penalty, integers", "penalty", {"clip_scope": "global"}, "routed", hosts=1),
    Case("penalty, tied", "penalty", {}, "wide", hosts=1),
    Case("recursive", "penalty", {"recursive": True}, hosts=2),
    Case("stored", "penalty-stored"),
    Case("lagrangian", "lagrangian", hosts=1),
    Case("lagrangian network", "lagrangian", {"kappa": "auxnet"}, hosts=2),
    Case("multiplier", "multiplier", {"micro": 1}),
    Case("multiplier, micro", "multiplier", {"micro": 3}, hosts=1),
    Case("multiplier, micro, dropout", "multiplier", {"micro": 2, "clip_scope": "global"}, "dropout"),
    Case("multiplier, tied", "multiplier", {"micro": 2}, "wide", hosts=1),
    Case("multiplier, integers", "multiplier", {"micro": 2, "beta": "adaptive"}, "routed", hosts=1),
    Case("multiplier, lockstep", "multiplier", {"lockstep": True, "micro": 2}, hosts=1),
    Case("accumulate", "multiplier", {"accumulate": 2, "micro": 2}),
    Case("bfloat16", "multiplier", {"autocast": torch.bfloat16, "micro": 2}),
    Case("float16", "penalty", {"autocast": torch.float16}),
    Case("checkpoint", "penalty", {"checkpoint": True}, "dropout"),
    Case("warm-up", "penalty", {"warmup": 2, "recouple": 0}),
    Case("warm-up, micro, refused", "penalty", {"warmup": 2, "recouple": 1e-9, "micro": 3}, "dropout", hosts=1),
    Case("warm-up, then skewed", "multiplier", {"warmup": 2, "micro": 2, "recouple": 0}, hosts=1),
    Case(
        "recipe",
        "1f1b[micro=4]@1steps,warmup@+1steps,multiplier[micro=2]@-2steps,stream[micro=2]",
        {"total_steps": 6, "check_every": 2, "recouple": 0},
        "dropout",
    ),
    Case("re-coupled", "multiplier", {"micro": 2, "recouple": 1e-9, "check_every": 3}, "dropout", epochs=3),
    Case("checked, bfloat16 on the wire", "penalty", {"check_every": 2, "transfer": torch.bfloat16}, hosts=1),
    Case("the program's own AuxNets", "multiplier", {"micro": 2}, "resnet"),
    Case("channels last", "multiplier", {"micro": 2}, "resnet, channels last"),
    Case("channels last, l-infinity", "penalty", {"psi": "linf"}, "resnet, channels last"),
    Case("bfloat16 on the wire", "multiplier", {"micro": 2, "transfer": torch.bfloat16}, hosts=1),
    Case("bfloat16 on the wire, channels last", "penalty", {"transfer": torch.bfloat16}, "resnet, channels last"),
    Case("8 bits on the wire", "stream", {"micro": 2, "transfer": torch.int8}, "resnet"),
    Case("AuxNets in bfloat16", "multiplier", {"micro": 2}, "resnet, bfloat16 AuxNets"),
    Case("AuxNets in bfloat16, recomputed stages", "penalty", {"checkpoint": True}, "resnet, bfloat16 AuxNets"),
    Case("AuxNets tied to their stages", "multiplier", {"micro": 2}, "tied resnet"),
    Case("dgl", "dgl", {"micro": 2}),
    Case("dgl, dropout, clipped globally", "dgl", {"clip_scope": "global", "accumulate": 2}, "dropout"),
    Case("dgl, tied", "dgl", {}, "wide"),
    Case(
        "dgl, integers, float16, checkpoint",
        "dgl",
        {"autocast": torch.float16, "checkpoint": True, "reconstruct": 0.5},
        "routed",
    ),
    Case("dgl, images", "dgl", {"micro": 2, "reconstruct": 0.5}, "resnet"),
    Case("dgl, then bp", "dgl", {}, switch="bp"),
    Case("pipedream", "pipedream"),
    Case("pipedream, micro, clipped", "pipedream", {"micro": 2, "clip": 0.5, "clip_scope": "global"}),
    Case("pipedream, tied, recomputed", "pipedream", {"checkpoint": True}, "wide"),
    Case("pipedream, 2bw, dropout", "pipedream", {"stash": "2bw"}, "dropout"),
    Case("pipedream, 2bw, tied", "pipedream", {"stash": "2bw", "micro": 2, "clip": 0.5}, "wide"),
    Case("pipedream, integers, accumulate", "pipedream", {"accumulate": 2}, "routed"),
    Case("ddg, float16", "ddg", {"autocast": torch.float16}, switch="fr"),
    Case("fr, dropout", "fr", {}, "dropout"),
    Case("fr, tied, micro", "fr", {"micro": 2, "warmup": 2}, "wide"),
    Case("fr, resnet", "fr", {"autocast": torch.bfloat16}, "resnet"),
    Case("switch", "multiplier", {"micro": 2}, switch="bp"),
]


def resnet() -> torch.nn.Module:
    return lpcompile.models.ResNet(14, 3, width=4)


MODELS = {"wide": Wide, "routed": Routed, "dropout": lambda: norm_mlp(dropout=0.2), "norm": norm_mlp,
          "resnet": resnet, "tied resnet": resnet, "resnet, bfloat16 AuxNets": resnet,
          "resnet, channels last": lambda: resnet().to(memory_format=torch.channels_last)}  # fmt: skip


def compiled_for(model: str, K: int, x: Any, hosts: int) -> Program:
    torch.manual_seed(0)
    how: dict[str, Any] = {}
    if "resnet" in model:
        how = {"init": "consistent", "aux": "tied" if "tied" in model else "derived"}
    if "bfloat16" in model:
        how["aux_dtype"] = torch.bfloat16
    return compiled(MODELS[model](), K, x, random_hosts(K, hosts) if hosts else None, max_width=3, **how)


PROGRAMS: dict[tuple[str, int, int], tuple[Program, Start]] = {}


def shared(model: str, K: int, x: Any, hosts: int) -> tuple[Program, Start]:
    """A program that several cases train one after another, and how it was before the first of them."""
    if (model, K, hosts) not in PROGRAMS:
        program = compiled_for(model, K, x, hosts)
        PROGRAMS[model, K, hosts] = program, Start(program)
    return PROGRAMS[model, K, hosts]


class Start:
    """The tensors of a compiled program, to begin another training with, also after a rank has freed other stages."""

    def __init__(self, program: Program) -> None:
        self.program = program
        roots = (program.module, program.captured, *program.stages, *program.auxnets)
        every = [m for root in roots for m in root.modules()]
        self.held = [(m, dict(m._parameters), dict(m._buffers)) for m in every]
        tensors = [t for _, *kinds in self.held for kind in kinds for t in kind.values() if t is not None]
        self.values = [(t, t.detach().clone()) for t in tensors]

    def restore(self) -> None:
        for module, parameters, buffers in self.held:
            module._parameters.update(parameters)
            module._buffers.update(buffers)
        with torch.no_grad():
            for tensor, value in self.values:
                tensor.copy_(value)
                tensor.grad = None
        self.program.train()


def train(case: Case, K: int) -> dict[str, Any]:
    """A few steps, the last batch smaller; weights, AuxNet weights of this process, metrics and evaluation."""
    torch.manual_seed(11)
    data = batches(6, dtype=torch.float32, last=6)
    if case.model == "wide":
        data = [((x, torch.arange(len(x)) % 10), y) for x, y in data]
    if "resnet" in case.model:
        data = [(x.repeat(1, 32).view(len(x), 3, 8, 8), y) for x, y in data]
    if "dgl" in case.method:  # a program makes its heads once
        program = compiled_for(case.model, K, data[0][0], case.hosts)
    else:
        program, start = shared(case.model, K, data[0][0], case.hosts)
        start.restore()
    torch.manual_seed(0)
    loss = (lambda out, y: F.cross_entropy(out["logits"], y)) if case.model == "wide" else F.cross_entropy
    auxnets = None if "resnet" in case.model else any_auxnets(program)
    trainer = program.trainer(loss, optimizer=sgd, method=case.method, auxnets=auxnets, **case.options)
    metrics = []
    for i, (x, y) in enumerate(data * case.epochs):
        if case.switch and i == 4:
            trainer.switch(case.switch)
        index = torch.arange(len(y)) + 8 * (i % 3)
        metrics.append(trainer.gather(trainer.step(x, y, index)))
    shown = trainer.evaluate(data[:2], recalibrate=data[:3], aux=True)
    learnt = {f"{k} {n}": t for w in trainer.workers for k, net in w.auxnets.items()
               for n, t in net.module.state_dict().items()}  # fmt: skip
    learnt |= {f"head {w.rank} {n}": t for w in trainer.workers if w.head for n, t in w.head.state()[0].items()}
    numbers = [{k: v for k, v in m.items() if " ms" not in k} for m in metrics]
    return {"model": trainer.state_dict(), "auxnets": learnt, "metrics": numbers, "evaluation": shown}


def run_rank(rank: int, K: int, port: int, folder: str) -> None:
    """One gloo process: all cases one after another."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(K), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for i, case in enumerate(CASES):
        torch.save(train(case, K), f"{folder}/{i}-{rank}.pt")
    torch.distributed.destroy_process_group()
