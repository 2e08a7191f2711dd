"""`program.fit`: a compiled program trained on processes of its own, from a script or a notebook."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lpcompile.core.compiled import CompiledProgram
from lpcompile.core.micro_batches import checked_micro
from lpcompile.core.plan import Plan
from lpcompile.errors import UsageError
from lpcompile.runtime.comm import pack
from lpcompile.runtime.comm.handshake import in_torchrun
from lpcompile.runtime.engine.trainer import Trainer
from lpcompile.runtime.launch import launch
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.runtime.methods import get_method

LOOP_OPTIONS = [f.name for f in fields(LoopOptions)]
Follow = Callable[[nn.Module, Plan, Any, Any], CompiledProgram]  # compiles a model again by its plan


@dataclass(frozen=True)
class FitRequest:
    """Arguments of `fit`, besides the program."""

    loss_fn: Any
    loader: Any
    epochs: int
    test: Any
    replicas: int
    options: dict[str, Any]
    watch: LoopOptions


def fit(
    program: CompiledProgram,
    loss_fn: Callable[[Any, Any], Tensor],
    loader: Iterable[Any],
    epochs: int = 1,
    *,
    test: Iterable[Any] | None = None,
    replicas: int = 1,
    timeout: float = launch.TIMEOUT,
    follow: Follow,
    **options: Any,
) -> dict[str, Any]:
    """Train on K processes of this machine (or as one rank, under torchrun), and leave the weights in the model.

    loader, test: give (x, y) or (x, y, index); every rank iterates them alike. With replicas, each takes its own
        part of every batch.
    timeout: seconds within which a job with a dead or hanging rank has ended everywhere.
    follow: how a new process compiles the program again; a function of a module, for it is pickled.
    options: those of `program.trainer` and of `lpcompile.runtime.loop.options.LoopOptions` (save, log, trace, ...).
    """
    watch = LoopOptions(**{name: options.pop(name) for name in LOOP_OPTIONS if name in options})
    request = FitRequest(loss_fn, loader, epochs, test, replicas, options, watch)
    plan = program.plan
    method = get_method(options.get("method") or plan.method)
    if method.pipeline:  # refuse what cannot be cut before processes are started
        checked_micro(method, plan.K, plan.batch, options.get("micro"), plan.batch_free)
    world = program.plan.K * replicas
    device = next((p.device for p in program.module.parameters()), torch.device("cpu")).type
    if world == 1 or in_torchrun():
        if world > 1:
            launch.join(device, timeout)
        return _fit(program, request)[0]
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "program.fit starts processes that import this script: put its work under if __name__ == '__main__':"
        )
    from safetensors.torch import load_file

    nets = {name: net.state_dict() for name, net in _nets(program, request).items()}
    given = (program.module, program.module.state_dict(), program.plan, program.how, nets, request)
    data = pack.dumps(given, "the model, loss, optimizer or loader")
    with tempfile.TemporaryDirectory(prefix="lpcompile-") as folder:
        file = f"{folder}/model.safetensors"
        found: dict[str, Any] = launch.launch(
            _rank,
            (follow, data, torch.get_rng_state(), file),
            world=world,
            K=program.plan.K,
            device=device,
            timeout=timeout,
        )
        own = {f"auxnet {k}": net for k, net in enumerate(options.get("auxnets") or (), start=1)}
        own |= {f"head {k}": net for k, net in enumerate(options.get("heads") or ())}
        _take_over(program, {**_nets(program, request), **own}, load_file(file))
    return found


def _nets(program: CompiledProgram, request: FitRequest) -> dict[str, nn.Module]:
    """The program's own AuxNets, and its heads where the method needs them."""
    found: dict[str, nn.Module] = {f"auxnet {k}": net for k, net in enumerate(program.auxnets, start=1)}
    method = get_method(request.options.get("method") or program.plan.method)
    if method.heads and request.options.get("heads") is None:
        found |= {f"head {k}": net for k, net in enumerate(program.heads)}
    return found


def _take_over(program: CompiledProgram, nets: dict[str, nn.Module], given: dict[str, Tensor]) -> None:
    """Load the weights that the ranks ended with, of the model, of the AuxNets and of the heads."""
    parts: dict[str, dict[str, Tensor]] = {}
    for full, tensor in given.items():
        part, _, name = full.partition("/")
        parts.setdefault(part, {})[name] = tensor
    program.module.load_state_dict(parts.pop("model", {}), strict=True)
    for part, state in parts.items():
        nets[part].load_state_dict(state, strict=True)


def _fit(program: CompiledProgram, given: FitRequest) -> tuple[dict[str, Any], Trainer]:
    trainer = Trainer(
        program, given.loss_fn, trace=given.watch.trace is not None, replicas=given.replicas, **given.options
    )
    loader = given.loader
    if given.replicas > 1:
        loader = Shard(loader, trainer.first_rank // trainer.plan.K, given.replicas)
    return run(trainer, loader, given.epochs, test=given.test, watch=given.watch), trainer


def _rank(follow: Follow, data: bytes, random: Tensor, file: str) -> dict[str, Any]:
    """One rank's process: compile the program again by its plan, train, and leave the model's state in a file."""
    from safetensors.torch import save_file

    model, state, plan, how, nets, request = pack.loads(data)
    state = {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
    program = follow(model, plan, how, next(iter(request.loader))[0])
    model.load_state_dict(state)  # a consistent start is for fresh models: here they are as they were
    for name, net in _nets(program, request).items():
        net.load_state_dict(nets[name])
    torch.set_rng_state(random)
    found, trainer = _fit(program, request)
    whole = {f"model/{name}": t for name, t in trainer.state_dict().items()}
    mine = {f"auxnet {k}/{name}": t for w in trainer.workers for k, net in w.auxnets.items()
            for name, t in net.module.state_dict().items()}  # fmt: skip
    mine |= {f"head {w.rank}/{name}": t for w in trainer.workers if w.head is not None
             for name, t in w.head.net.module.state_dict().items()}  # fmt: skip
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, {name: t.cpu() for name, t in mine.items()}, group=trainer.control)
    if trainer.main:
        for part in (whole, *everyone[: trainer.plan.K]):
            whole |= part
        save_file({name: t.clone().contiguous() for name, t in whole.items()}, file)
    return found


class Shard:
    """One replica's part of every batch of a loader that all iterate alike."""

    def __init__(self, loader: Any, this: int, of: int) -> None:
        self.loader, self.this, self.of = loader, this, of

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            yield pytree.tree_map(lambda t: t[self.this :: self.of] if isinstance(t, Tensor) else t, batch)
