"""From a compiled program to workers: all of them in one process, or this rank's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from lpcompile.core.compiled import CompiledProgram, output_tree
from lpcompile.core.stage_io import StageIO, io_of, own_io
from lpcompile.errors import UsageError
from lpcompile.runtime.comm.transport import Local, Transport
from lpcompile.runtime.engine.settings import Settings
from lpcompile.runtime.engine.torch_compile import compiled
from lpcompile.runtime.engine.update import Updater
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.penalty.kappa import kappa_net

Factory = Callable[[list[nn.Parameter]], Any]
FIRST_SCALE = 2.0**16


def aux_nets(
    program: CompiledProgram, given: Sequence[nn.Module] | None, recursive: bool, hosts: dict[int, int]
) -> dict[int, Net]:
    """AuxNets by boundary. A module without a record of its own is called as its stage, or on the model's inputs."""
    modules = given if given is not None else program.auxnets
    if len(modules) != program.plan.K - 1:
        raise UsageError(
            f"{len(modules)} AuxNets for {program.plan.K - 1} boundaries; "
            f"pass auxnets=[...] with one module a boundary, or compile the program with AuxNets"
        )
    found, dtype = {}, getattr(torch, program.plan.aux_dtype) if program.plan.aux_dtype else None
    for k, module in enumerate(modules, start=1):
        stage = io_of(program.stages[k - 1])
        default = StageIO((), io_of(program.stages[0]).inputs, stage.boundary, ()) if recursive else stage
        found[k] = Net(module, own_io(module) or default, dtype=dtype)
    for i, j in combinations(found, 2):
        left, right = ({id(p) for p in found[k].module.parameters()} for k in (i, j))
        if left & right and hosts[i] != hosts[j]:
            raise UsageError(
                f"the AuxNets of boundaries {i} and {j} share weights but run on ranks {hosts[i]} and {hosts[j]}; "
                f"use aux='recursive', where each has its own"
            )
    return found


BEFORE = (
    "which is made before the last stage and stays there; keep its layers in the last stage with "
    "pins={'together': ...}, or leave it out of the loss"
)


class Elsewhere:
    """Stands for a model output that an earlier stage makes: a loss may pass it by, but not use it."""

    def __init__(self, position: int, why: str = BEFORE) -> None:
        self.__dict__.update(position=position, why=why)

    def __getattr__(self, name: str) -> Any:
        raise UsageError(f"the loss uses output {self.position} of the model, {self.why}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        next(a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Elsewhere)).used  # noqa: B018


def structured(program: CompiledProgram, io: StageIO, found: Sequence[Any], training: bool, why: str = BEFORE) -> Any:
    """The model's output, in its own structure, from what the last stage gives. `why`: what is missing, if anything."""
    tree = output_tree(program, training)
    flat: list[Any] = [Elsewhere(i, why) for i in range(tree.count)]
    for position, value in zip(io.outputs, found, strict=True):
        flat[position] = value
    return tree.unflatten(flat)


def loss_of(
    program: CompiledProgram, stage: Net, loss_fn: Callable[[Any, Any], Tensor]
) -> Callable[[Sequence[Any], Any], Tensor]:
    """The user's loss on what the last stage gives."""
    return lambda found, target: loss_fn(structured(program, stage.io, found, True), target)


def stage_net(program: CompiledProgram, rank: int, settings: Settings) -> Net:
    """A stage as it runs in training. torch.compile finds by itself what may be written in place, and under autocast
    sums may have another dtype than what they are made of."""
    stage = program.stages[rank]
    net = Net(stage, io_of(stage))
    if settings.compile:
        return compiled(net)
    return net if settings.autocast is not None else replace(net, call=program.lean_stage(rank))


def make_worker(
    program: CompiledProgram,
    rank: int,
    loss_fn: Callable[[Any, Any], Tensor],
    optimizer: Factory,
    settings: Settings,
    transport: Transport,
    device: torch.device,
) -> Worker:
    """A rank with its stage and the optimizer of its stage. Parameters come in the model's order, a loss's own last."""
    stage, K = stage_net(program, rank, settings), program.plan.K
    stage.module.to(device)
    loss = loss_of(program, stage, loss_fn) if rank == K - 1 else None
    specs = {b.index: b.specs for b in program.plan.boundaries}
    w = Worker(rank, K, stage, specs, loss, device, settings, transport)
    for name, ranks in program.plan.tied:
        if rank in ranks:
            w.tied[name], w.owners[name] = program.module.get_parameter(name), tuple(ranks)
            w.shared = isinstance(transport, Local)
    ids = {id(p) for p in stage.module.parameters()}
    ids -= {id(p) for name, p in w.tied.items() if not w.steps_tied(name)}
    own = [p for p in program.module.parameters() if id(p) in ids and p.requires_grad]
    if w.last and isinstance(loss_fn, nn.Module):
        own += [p for p in loss_fn.to(device).parameters() if p.requires_grad]
    w.trained = [*own, *(p for name, p in w.tied.items() if p.requires_grad and not w.steps_tied(name))]
    scale = FIRST_SCALE if settings.autocast == torch.float16 else 1.0
    w.updater = Updater(own, optimizer(own) if own else None, scale)
    w.updater.uncounted = {id(p) for name, p in w.tied.items() if rank != w.owners[name][0]}
    return w


def add_auxnets(w: Worker, auxnets: dict[int, Net], hosts: dict[int, int], optimizer: Factory) -> None:
    """Give a worker the AuxNets that run on its rank. Weights that are the stage's stay with the stage's optimizer."""
    stage = {id(p) for p in w.stage.module.parameters()}
    ids = set(stage)
    for k, net in auxnets.items():
        if hosts[k] == w.rank:
            w.auxnets[k] = net
            parameters = list(net.module.to(w.device).train().parameters())
            w.aux_trained[k] = tuple(p for p in parameters if p.requires_grad)
            if any(id(p) in stage for p in parameters):
                w.shares_stage.add(k)
            w.updater.add(f"auxnet {k}", [p for p in parameters if p.requires_grad and id(p) not in ids], optimizer)
            ids |= {id(p) for p in parameters}


def add_kappanet(w: Worker, given: Sequence[nn.Module] | None, optimizer: Factory) -> None:
    """Give a worker the network of κ for the boundary above its stage."""
    k = w.rank + 1
    if k < w.K:
        specs = tuple(w.specs[k][i] for i in w.differentiable[k])
        module = (kappa_net(specs) if given is None else given[k - 1]).to(w.device)
        w.kappanets[k] = module
        w.updater.add(f"kappa {k}", [p for p in module.parameters() if p.requires_grad], optimizer)
