"""From a compiled program to workers: all of them in one process, or this rank's own; the networks that they train, and
what they must agree on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lpcompile.core import __version__
from lpcompile.core.compiled import CompiledProgram
from lpcompile.core.memory_format import laid_out_as
from lpcompile.core.method import Method
from lpcompile.core.stage_io import StageIO, io_of, own_io, refresh, use_mode
from lpcompile.errors import UsageError
from lpcompile.runtime.comm.transport import Transport
from lpcompile.runtime.engine.batches.outputs import loss_of
from lpcompile.runtime.engine.settings import Settings, asdict_shallow
from lpcompile.runtime.engine.torch_compile import compiled_net
from lpcompile.runtime.engine.update import Factory, Updater, made, recipe_facts
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.methods.recipe import recipe_text
from lpcompile.runtime.penalty.heads import add_decoder, add_head, head_nets
from lpcompile.runtime.penalty.kappa import kappa_net

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

FIRST_LOSS_SCALE = 2.0**16


def device_of(module: nn.Module) -> torch.device:
    found = next((t.device for t in (*module.parameters(), *module.buffers())), None)
    return found if found is not None else torch.device("cpu")


def ready_program(program: CompiledProgram, device: torch.device | None) -> None:
    """Put the program into training mode, and its model on the device where one is given."""
    if device is not None:
        program.module.to(device)
    for stage in program.stages:
        refresh(stage)
        if not stage.training:
            use_mode(stage, True)
    if not program.module.training:  # else the user's own choice of layers that stay in evaluation holds
        program.train()


def add_networks(engine: Engine, target: Method, s: Settings) -> None:
    """Give the workers what the method needs and they do not have: AuxNets, heads, κ-networks."""
    if target.aux == "auxnet" and engine.plan.K > 1 and not engine.auxnets:
        nets = aux_nets(engine.program, engine.given.auxnets, engine.recursive(), engine.hosts())
        for net in nets.values():
            laid_out_as(engine.program.module, net.module)
        engine.auxnets = {k: compiled_net(net) if s.compile else net for k, net in nets.items()}
        for w in engine.workers:
            add_auxnets(w, engine.auxnets, engine.hosts(), engine.aux_optimizer)
    if target.heads and engine.plan.K > 1 and not engine.heads:
        engine.heads = head_nets(engine.program, engine.given.heads, engine.loss_fn)
        for w in engine.workers:
            add_head(w, engine.heads, engine.aux_optimizer)
    if target.heads and s.reconstruct:
        for w in engine.workers:
            add_decoder(w, engine.program, engine.aux_optimizer)
    if target.replay_buffers and s.transfer is not None:
        raise UsageError(f"transfer={s.transfer}: {target.name!r} has messages of its own, in full precision")
    for w in engine.workers:
        if target.kappa and s.kappa == "auxnet" and not w.kappanets:
            add_kappanet(w, engine.given.kappanets, engine.aux_optimizer)


def add_schedulers(engine: Engine) -> None:
    """A learning-rate scheduler for every optimizer that has none, where the user wants them."""
    if engine.scheduler is None:
        return
    for w in engine.workers:
        for name, optimizer in w.updater.optimizers().items():
            if f"{w.rank} {name}" not in engine.schedulers:
                engine.schedulers[f"{w.rank} {name}"] = made(engine.scheduler, optimizer, "scheduler")


def aux_nets(
    program: CompiledProgram, given: Sequence[nn.Module] | None, recursive: bool, hosts: dict[int, int]
) -> dict[int, Net]:
    """AuxNets by boundary. A user's module takes the arguments of its stage, or the model's inputs if `recursive`."""
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


def stage_net(program: CompiledProgram, rank: int, settings: Settings) -> Net:
    """A stage as it runs in training: in less memory, but neither under torch.compile, which writes in place by itself,
    nor under autocast, where a sum may have another dtype than its terms."""
    stage = program.stages[rank]
    net = Net(stage, io_of(stage))
    if settings.compile:
        return compiled_net(net)
    return net if settings.autocast is not None else replace(net, call=program.lean_stage(rank))


def make_worker(
    program: CompiledProgram,
    rank: int,
    loss_fn: Callable[[Any, Any], Tensor],
    optimizer: Factory,
    settings: Settings,
    transport: Transport,
    device: torch.device,
    here: Sequence[int],
) -> Worker:
    """A stage of this process, whose stages are `here`, and its optimizer. Parameters come in the model's order, the
    loss's own last."""
    stage, K = stage_net(program, rank, settings), program.plan.K
    stage.module.to(device)
    loss = loss_of(program, stage.io, loss_fn) if rank == K - 1 else None
    specs = {b.index: b.specs for b in program.plan.boundaries}
    w = Worker(rank, K, stage, specs, loss, device, settings, transport)
    w.here = tuple(here)
    for name, ranks in program.plan.tied:
        if rank in ranks:
            w.tied[name], w.owners[name] = program.module.get_parameter(name), tuple(ranks)
    ids = {id(p) for p in stage.module.parameters()}
    ids -= {id(p) for name, p in w.tied.items() if not w.steps_tied(name)}
    own = [p for p in program.module.parameters() if id(p) in ids and p.requires_grad]
    if w.last and isinstance(loss_fn, nn.Module):
        own += [p for p in loss_fn.to(device).parameters() if p.requires_grad]
    w.trained = [*own, *(p for name, p in w.tied.items() if p.requires_grad and not w.steps_tied(name))]
    scale = FIRST_LOSS_SCALE if settings.autocast == torch.float16 else 1.0
    w.updater = Updater(own, made(optimizer, own, "optimizer") if own else None, scale)
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


def facts(engine: Engine) -> dict[str, Any]:
    """What all ranks must agree on."""
    return {
        "lpcompile version": __version__,
        "torch version": torch.__version__,
        "shapes and dtypes": [str(s) for b in engine.plan.boundaries for s in b.specs],
        "plan": engine.plan.hash,
        "method": recipe_text(engine.recipe),
        "memory format": "channels last" if engine.channels_last else "contiguous",
        **{f"option {k}": str(v) for k, v in asdict_shallow(engine.settings).items()},
        **recipe_facts(engine.workers[0].updater, engine.loss_fn, engine.schedulers),
    }
