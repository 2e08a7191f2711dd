"""`program.fit`: a compiled program trained on processes of its own, from a script or a notebook."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lpcompile.core.compiled import CompiledProgram
from lpcompile.core.micro_batches import checked_micro
from lpcompile.core.plan import Plan
from lpcompile.errors import InputError, UsageError
from lpcompile.runtime.checkpoint.whole_model import WholeModel
from lpcompile.runtime.comm import exchange, pack
from lpcompile.runtime.comm.handshake import in_torchrun
from lpcompile.runtime.engine.batches.forms import input_names, parts_of
from lpcompile.runtime.engine.settings import settings
from lpcompile.runtime.engine.trainer import Trainer
from lpcompile.runtime.engine.update import check_factories
from lpcompile.runtime.launch import board, launch
from lpcompile.runtime.launch.temporary import temporary_folder
from lpcompile.runtime.loop.best import check_figure
from lpcompile.runtime.loop.callbacks import Announcer, Calls
from lpcompile.runtime.loop.data import EMPTY, NO_LENGTH, about_workers, first_batch, length_of
from lpcompile.runtime.loop.evaluate import Metrics, check_metrics
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.runtime.loop.record import Record
from lpcompile.runtime.methods import get_method
from lpcompile.runtime.methods.recipe import Recipe, recipe_of, refuse_inexact

LOOP_OPTIONS = [f.name for f in fields(LoopOptions)]
ENGINE_OPTIONS = ("optimizer", "aux_optimizer", "scheduler", "method", "auxnets", "kappanets", "heads", "device")
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
    called: bool  # whether there are callbacks, in the process that launched the ranks
    metrics: Metrics | None = None


def fit(
    program: CompiledProgram,
    loss_fn: Callable[[Any, Any], Tensor] | None,
    loader: Iterable[Any],
    epochs: int = 1,
    *,
    test: Iterable[Any] | None = None,
    replicas: int = 1,
    timeout: float = launch.TIMEOUT,
    metrics: Metrics | None = None,
    follow: Follow,
    calls: Calls | None = None,
    **options: Any,
) -> Record:
    """Train on K processes of this machine (or as one rank, under torchrun), and leave the weights in the model.

    loss_fn: None for the loss that the model returns.
    loader, test: give (x, y), (x, y, index) or dicts (`lpcompile.runtime.engine.batches.forms`); every rank iterates
        them alike. With replicas, each takes its own part of every batch.
    metrics: functions from all outputs and targets of `test` to a number, by name.
    timeout: seconds within which a job with a dead or hanging rank has ended everywhere.
    follow: how a new process compiles the program again; a function of a module, for it is pickled.
    calls: callbacks and loggers, called in this process.
    options: those of `program.trainer` and of `lpcompile.runtime.loop.options.LoopOptions` (save, log, trace, ...).
    """
    watch = LoopOptions(**{name: options.pop(name) for name in LOOP_OPTIONS if name in options}).check()
    calls = calls or Calls({})
    _check(loader, epochs, test, replicas, timeout, metrics, options)
    check_figure(watch.best, metrics, test)
    request = FitRequest(loss_fn, loader, epochs, test, replicas, options, watch, bool(calls), metrics)
    plan = program.plan
    if plan.exact:  # also refused before processes are started: what is not exact, and what cannot be cut
        refuse_inexact(_recipe(program, options))
    for phase in _recipe(program, options):
        micro = {**options, **phase.options}.get("micro")
        if (method := get_method(phase.method)).torch_schedule:
            checked_micro(method, plan.world, plan.batch, micro, plan.batch_free)
    world = plan.world * replicas
    device = next((p.device for p in program.module.parameters()), torch.device("cpu")).type
    if world == 1 or in_torchrun():
        if world > 1:
            launch.join(device, timeout)
        parts = {"model": program.module, **_nets(program, request), **_own_nets(options)} if world > 1 else {}
        whole = {name: WholeModel(module) for name, module in parts.items()}
        with contextlib.closing(calls):
            found, trainer = _fit(program, request, calls)
        if whole:  # this rank has freed what others train
            for name, state in _by_part(_weights(trainer)).items():
                whole[name].fill(state, trainer.device)
        return found
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise UsageError(
            "program.fit was called while a process of your own starts and imports this script: put the work of the "
            "script under if __name__ == '__main__':"
        )
    about_workers(loader, world)
    from safetensors.torch import load_file

    nets = {name: net.state_dict() for name, net in _nets(program, request).items()}
    given = (
        program.module,
        program.module.state_dict(),
        program.plan,
        program.how,
        nets,
        input_names(program),
        request,
    )
    data = pack.dumps(given, "the model, loss, optimizer or loader")
    with temporary_folder() as folder, contextlib.closing(calls):
        file = f"{folder}/model.safetensors"
        record: Record = launch.launch(
            _rank,
            (follow, data, torch.get_rng_state(), file),
            world=world,
            K=plan.world,
            device=device,
            timeout=timeout,
            answer=calls if calls else None,
        )
        _take_over({"model": program.module, **_nets(program, request), **_own_nets(options)}, load_file(file))
    return record


def _check(
    loader: Any, epochs: Any, test: Any, replicas: Any, timeout: Any, metrics: Any, options: dict[str, Any]
) -> None:
    """Refuse what cannot work before anything starts."""
    check_factories(options)
    settings({name: value for name, value in options.items() if name not in ENGINE_OPTIONS})
    if not isinstance(loader, Iterable):
        raise InputError(f"the loader is {loader!r}, and batches are taken from a DataLoader, a list or the like")
    if (length := length_of(loader)) is None:
        raise UsageError(NO_LENGTH)
    if not length:
        raise InputError(EMPTY)
    for name, count in (("epochs", epochs), ("replicas", replicas)):
        if not isinstance(count, int) or count < 1:
            raise UsageError(f"{name}={count!r} trains nothing; give a whole number, 1 or more")
    launch.check_timeout(timeout)
    check_metrics(metrics, test)


def _recipe(program: CompiledProgram, options: dict[str, Any]) -> Recipe:
    return recipe_of(options.get("method") or program.plan.training)


def _nets(program: CompiledProgram, request: FitRequest) -> dict[str, nn.Module]:
    """The program's own AuxNets and heads, where a phase of training or the plan has them."""
    methods = [get_method(phase.method) for phase in _recipe(program, request.options)]
    planned = program.plan.aux != ""
    asked = any(method.aux == "auxnet" for method in methods) and request.options.get("auxnets") is None
    nets = program.auxnets if planned or asked else ()
    found: dict[str, nn.Module] = {f"auxnet {k}": net for k, net in enumerate(nets, start=1)}
    if any(method.heads for method in methods) and request.options.get("heads") is None:
        found |= {f"head {k}": net for k, net in enumerate(program.heads)}
    return found


def _own_nets(options: dict[str, Any]) -> dict[str, nn.Module]:
    """The AuxNets and heads that the user gave."""
    own: dict[str, nn.Module] = {f"auxnet {k}": net for k, net in enumerate(options.get("auxnets") or (), start=1)}
    return own | {f"head {k}": net for k, net in enumerate(options.get("heads") or ())}


def _weights(trainer: Trainer) -> dict[str, Tensor]:
    """The weights that the ranks ended with, of the model, of the AuxNets and of the heads. All ranks call it."""
    whole = {f"model/{name}": t for name, t in trainer.state_dict().items()}
    mine = {f"auxnet {k}/{name}": t for w in trainer.workers for k, net in w.auxnets.items()
            for name, t in net.module.state_dict().items()}  # fmt: skip
    mine |= {f"head {w.rank}/{name}": t for w in trainer.workers if w.head is not None
             for name, t in w.head.net.module.state_dict().items()}  # fmt: skip
    for part in exchange.gathered(mine, trainer.control)[: trainer.plan.world]:
        whole |= part
    return whole


def _by_part(given: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    parts: dict[str, dict[str, Tensor]] = {}
    for full, tensor in given.items():
        part, _, name = full.partition("/")
        parts.setdefault(part, {})[name] = tensor
    return parts


def _take_over(modules: dict[str, nn.Module], given: dict[str, Tensor]) -> None:
    """Load the weights that the ranks ended with, of the model, of the AuxNets and of the heads."""
    for part, state in _by_part(given).items():
        modules[part].load_state_dict(state, strict=True)


def _fit(program: CompiledProgram, given: FitRequest, calls: Calls | None = None) -> tuple[Record, Trainer]:
    trainer = Trainer(
        program, given.loss_fn, trace=given.watch.trace is not None, replicas=given.replicas, **given.options
    )
    loader = given.loader
    if given.replicas > 1:
        loader = Shard(loader, trainer.first_rank // trainer.plan.world, given.replicas)
    announce, watch = Announcer(trainer, calls, given.called), given.watch
    found = run(trainer, loader, given.epochs, test=given.test, watch=watch, metrics=given.metrics, announce=announce)
    return found, trainer


def _rank(follow: Follow, data: bytes, random: Tensor, file: str) -> Record:
    """One rank's process: compile the program again by its plan, train, and leave the model's state in a file."""
    from safetensors.torch import save_file

    model, state, plan, how, nets, names, request = pack.loads(data)
    state = {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
    first = first_batch(request.loader)
    if first is None:
        raise InputError(EMPTY)
    with board.away(0, "compiling the model"):
        program = follow(model, plan, how, parts_of(names, request.loss_fn, first).x)
    model.load_state_dict(state)  # a consistent start is for fresh models: here they are as they were
    for name, net in _nets(program, request).items():
        net.load_state_dict(nets[name])
    torch.set_rng_state(random)
    found, trainer = _fit(program, request)
    whole = _weights(trainer)
    if trainer.main:
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
            batch = dict(batch) if isinstance(batch, Mapping) else batch
            yield pytree.tree_map(lambda t: t[self.this :: self.of] if isinstance(t, Tensor) else t, batch)
