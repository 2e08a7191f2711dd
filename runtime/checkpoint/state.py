"""A trainer's state: equal on all ranks at the start, then each part on its own rank, gathered for the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lpcompile.errors import UsageError
from lpcompile.runtime.comm.transport import Distributed
from lpcompile.runtime.engine import phases
from lpcompile.runtime.engine.worker import Worker
from lpcompile.runtime.penalty.stores import Store

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

LENGTHS = ("total_steps", "T_max", "total_iters")  # attributes of torch's schedulers that say how long they are


def share_start(trainer: Engine) -> None:
    """Broadcast rank 0's parameters and buffers, of the model, the AuxNets and the loss."""
    modules = [trainer.program.module, *(net.module for net in trainer.auxnets.values())]
    modules += [m for head in trainer.heads.values() for m in head.modules]
    if isinstance(trainer.loss_fn, nn.Module):
        modules.append(trainer.loss_fn)
    done: set[int] = set()
    with torch.no_grad():
        for module in modules:
            for tensor in (*module.parameters(), *module.buffers()):
                if id(tensor) not in done:
                    done.add(id(tensor))
                    here = tensor.detach().to(trainer.device).contiguous()
                    dist.broadcast(here, 0)
                    tensor.copy_(here)


def release_others(trainer: Engine) -> None:
    """Free the stages and AuxNets of other ranks: their tensors move to the meta device."""
    kept = {id(t) for w in trainer.workers for m in modules(w) for t in (*m.parameters(), *m.buffers())}
    program = trainer.program
    others = [program.module, program.captured, *program.stages, *(net.module for net in trainer.auxnets.values())]
    others += [m for head in trainer.heads.values() for m in head.modules]
    roots = (root for root in others if isinstance(root, nn.Module))  # a loaded program has no undivided graph
    for module in (m for root in roots for m in root.modules()):
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in kept:
                module._parameters[name] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        for name, buffer in module._buffers.items():
            if buffer is not None and id(buffer) not in kept:
                module._buffers[name] = buffer.to("meta")


def modules(w: Worker) -> list[nn.Module]:
    """The modules that a stage's worker trains."""
    own = w.head.modules if w.head is not None else ()
    return [w.stage.module, *(net.module for net in w.auxnets.values()), *w.kappanets.values(), *own]


def model_state(trainer: Engine) -> dict[str, Tensor]:
    """The whole model's state. Between processes each tensor comes from the lowest stage that has it."""
    model = trainer.program.module
    if not isinstance(trainer.transport, Distributed):
        return dict(model.state_dict())
    found = {}
    own = {w.rank: w.stage.module.state_dict() for w in trainer.workers}
    for key, stage, like in _owned(trainer):
        owner = trainer.plan.rank_of(stage)
        if stage in own:
            tensor = own[stage][key].detach().contiguous().clone()
        else:
            tensor = torch.empty(like.shape, dtype=like.dtype, device=trainer.device)
        dist.broadcast(tensor, trainer.first_rank + owner, group=trainer.mesh.along if trainer.mesh else None)
        found[key] = tensor.cpu()
    return found


def _owned(trainer: Engine) -> Iterator[tuple[str, int, Tensor]]:
    """Every key of the model's state with the lowest stage that has it."""
    keys = [set(stage.state_dict()) for stage in trainer.program.stages]
    for key, tensor in trainer.program.module.state_dict().items():
        if isinstance(tensor, Tensor):
            yield key, next(r for r, mine in enumerate(keys) if key in mine), tensor


def load_model_state(trainer: Engine, given: dict[str, Tensor]) -> None:
    """Load each rank's part of the original model's state."""
    wanted = set(trainer.program.module.state_dict())
    missing, unknown = sorted(wanted - set(given)), sorted(set(given) - wanted)
    if missing or unknown:
        raise UsageError(
            f"this is not the state of {trainer.plan.model}: missing {missing[:3]}, unknown {unknown[:3]}; "
            f"load the state_dict of the model that was compiled"
        )
    for w in trainer.workers:
        own = w.stage.module.state_dict()
        w.stage.module.load_state_dict({key: given[key] for key in own}, strict=True)


def own_state(trainer: Engine) -> dict[str, Any]:
    """Per rank of this process: modules, optimizers, stores, β, random stream; and what all ranks share."""
    return {
        "steps": trainer.steps,
        "slot": trainer.slot,
        "phases": phases.saved(trainer),
        "seen": trainer.seen,
        "violation_at_start": trainer.violation_at_start,
        "schedulers": {name: s.state_dict() for name, s in trainer.schedulers.items()},
        "ranks": {w.rank: _worker_state(trainer, w) for w in trainer.workers},
    }


def _worker_state(trainer: Engine, w: Worker) -> dict[str, Any]:
    loss = trainer.loss_fn if w.last else None
    return {
        "stage": w.stage.module.state_dict(),
        "auxnets": {k: net.module.state_dict() for k, net in w.auxnets.items()},
        "kappanets": {k: module.state_dict() for k, module in w.kappanets.items()},
        "heads": {w.rank: w.head.state()} if w.head is not None else {},
        "loss": loss.state_dict() if isinstance(loss, nn.Module) else {},
        "updater": w.updater.state(),
        "gradients": _gradients(w),
        "stores": {f"{kind} {k}": store.state() for (kind, k), store in w.stores.items()},
        "betas": {k: beta.now for k, beta in w.betas.items()},
        "random": w.random,
        "means": dict(w.means),
        "collapsed": dict(w.collapsed),
        "first_losses": list(w.first_losses),
    }


def _gradients(w: Worker) -> list[list[Tensor | None]]:
    """Gradients accumulated so far, if an optimizer step takes several batches."""
    groups = [w.updater.parameters, *(ps for ps, _ in w.updater.others.values())]
    return [[p.grad for p in ps] for ps in groups]


def load_own_state(trainer: Engine, given: dict[str, Any]) -> None:
    missing = [w.rank for w in trainer.workers if w.rank not in given["ranks"]]
    if missing:
        raise UsageError(f"the state holds ranks {sorted(given['ranks'])}, not {missing}; load each rank's own state")
    trainer.steps, trainer.slot, trainer.low = given["steps"], given["slot"], given["slot"]
    trainer.seen, trainer.violation_at_start = given["seen"].clone(), given["violation_at_start"]
    phases.resume(trainer, given["phases"])
    for name, scheduler in trainer.schedulers.items():
        load_scheduler(scheduler, given["schedulers"][name])
    for w in trainer.workers:
        _load_worker(trainer, w, given["ranks"][w.rank])


def load_scheduler(scheduler: Any, given: dict[str, Any]) -> None:
    """Go on where a schedule was; one of another length would end too early, or go on for too long."""
    for name in LENGTHS:
        own, saved = getattr(scheduler, name, None), given.get(name)
        if own is not None and saved is not None and own != saved:
            raise UsageError(
                f"the saved {type(scheduler).__name__} has {name}={saved}, and that of this run {name}={own}: resume "
                f"with as many epochs and steps as that run had, or start a run of its own from the saved weights"
            )
    scheduler.load_state_dict(given)


def _load_worker(trainer: Engine, w: Worker, given: dict[str, Any]) -> None:
    w.stage.module.load_state_dict(given["stage"], strict=True)
    for k, net in w.auxnets.items():
        net.module.load_state_dict(given["auxnets"][k], strict=True)
    for k, module in w.kappanets.items():
        module.load_state_dict(given["kappanets"][k], strict=True)
    if w.head is not None:
        w.head.load(given["heads"][w.rank])
    if w.last and isinstance(trainer.loss_fn, nn.Module):
        trainer.loss_fn.load_state_dict(given["loss"], strict=True)
    w.updater.load(given["updater"])
    groups = [w.updater.parameters, *(ps for ps, _ in w.updater.others.values())]
    known = given["gradients"] if len(given["gradients"]) == len(groups) else [[None] * len(ps) for ps in groups]
    for parameters, gradients in zip(groups, known, strict=True):
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = None if g is None else g.clone()
    w.stores.clear()
    for name, rows in given["stores"].items():
        kind, k = name.split()
        w.stores[kind, int(k)] = Store()
        w.stores[kind, int(k)].load(rows)
    for k, now in given["betas"].items():
        w.betas[k].now = now.to(w.device) if isinstance(now, Tensor) else now
    w.random = given["random"]
    w.means, w.collapsed = dict(given["means"]), dict(given["collapsed"])
    w.first_losses = list(given["first_losses"])
