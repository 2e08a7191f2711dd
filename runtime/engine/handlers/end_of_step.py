"""Instructions at the end of a step: gradients are averaged over replicas, summed over ranks, clipped and applied."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import torch
from torch import Tensor, nn

from lpcompile.core.schedule import Instruction
from lpcompile.runtime.engine import versions
from lpcompile.runtime.engine.update import InfiniteGradientError
from lpcompile.runtime.engine.worker import Worker
from lpcompile.runtime.health import collapse


def stash_tied(w: Worker) -> None:
    """Set gradients of tied parameters aside until the ranks sum them."""
    for name, parameter in w.tied.items():
        if parameter.grad is not None:
            before = w.tied_gradients.get(name)
            w.tied_gradients[name] = parameter.grad if before is None else before + parameter.grad
            parameter.grad = None


def average(w: Worker, item: Instruction, slot: int) -> None:
    """Average the gradients of stage, AuxNets and κ-networks over the replicas, as DDP does."""
    if w.apply and w.mesh is not None:
        every = [*w.updater.parameters, *(p for ps, _ in w.updater.others.values() for p in ps)]
        w.mesh.average([*(p.grad for p in every), *(w.tied_gradients.get(name) for name in sorted(w.tied))])


def tied(w: Worker, item: Instruction, slot: int) -> Iterator[None]:
    """Sum the gradients of tied parameters over their ranks, last stage first as in a serial backward."""
    if not w.apply:
        return
    for name, parameter in w.tied.items():
        mine = w.tied_gradients.pop(name, None)
        ranks = w.owners[name]
        tensor = torch.zeros_like(parameter) if mine is None else mine
        found = yield from gather(w, f"tied {name}", ranks, tensor)
        total = found[-1]
        for other in reversed(found[:-1]):
            total = total + other
        if w.steps_tied(name):
            parameter.grad = total
            w.updater.due.add("stage")


def norm(w: Worker, item: Instruction, slot: int) -> Iterator[None]:
    """Exchange the gradient norms of all ranks."""
    if not w.apply:
        return
    floats = [s.dtype for k in (w.rank, w.rank + 1) for s in w.specs.get(k, ()) if s.is_float]
    w.norms = yield from gather(w, "norm", range(w.K), w.updater.norm(w.device, *floats[:1]))


def step(w: Worker, item: Instruction, slot: int) -> Iterator[None]:
    """Optimizers step. In one process a tied parameter is one tensor: other stages wait until it has stepped."""
    if w.apply:
        before = versions.now(w.updater.parameters)
        try:
            with versions.apart(w):
                w.updater.apply(w.norms, w.look)
        except InfiniteGradientError as error:
            what = f"the gradient of {name_of(w, error.parameter)} is not finite"
            collapse.fail("stop", f"{collapse.place(w.step, w.rank, None)}: {what}", collapse.INFINITE)
        if w.ahead:
            versions.look_ahead(w, before)
    for name in w.tied:
        if len(owners := w.owners_here(name)) > 1:
            yield from gather(w, f"stepped {name}", owners, torch.zeros(()))


def name_of(w: Worker, parameter: nn.Parameter) -> str:
    """A parameter's name: in the model, or in the network beside the stage that has it."""
    nets = {"": w.stage.module} | {f"AuxNet {k}'s ": net.module for k, net in w.auxnets.items()}
    nets |= {f"κ-network {k}'s ": module for k, module in w.kappanets.items()}
    nets |= {f"head part {i}'s ": m for i, m in enumerate(w.head.modules if w.head is not None else ())}
    found = (f"{whose}{n}" for whose, m in nets.items() for n, p in m.named_parameters() if p is parameter)
    return next(found, "a parameter of the loss")


def gather(w: Worker, name: str, ranks: Sequence[int], tensor: Tensor) -> Generator[None, None, list[Tensor]]:
    found = w.transport.gather(w.rank, name, ranks, tensor)
    while found is None:
        yield
        found = w.transport.gather(w.rank, name, ranks, tensor)
    w.progress += 1  # an instruction may gather several times: a rank that has met the others has moved
    return found
