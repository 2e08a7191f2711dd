"""Heads: every stage but the last has its own loss, so that no gradient has to cross a boundary."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lpcompile.core.compiled import CompiledProgram
from lpcompile.core.schedule import Instruction
from lpcompile.core.stage_io import StageIO, own_io
from lpcompile.errors import UsageError
from lpcompile.runtime.engine.batches.batch import MicroBatch
from lpcompile.runtime.engine.batches.outputs import one_number, structured
from lpcompile.runtime.engine.update import Factory
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.penalty.reconstruction import Decoder, make_decoder

NOT_OF_A_HEAD = (
    "which the heads of the stages below do not give: it is made before the model's end, and a head leads to its end; "
    "leave it out of the loss, give heads=[...] of your own, or use another method"
)


@dataclass(frozen=True)
class Head:
    """The network from X_{k+1} to the model's outputs, and the user's loss on them.

    A loss that is a module is copied for each head: it may have weights, which train with the head's.
    """

    net: Net
    loss_fn: Callable[[Any, Any], Tensor]
    output: Callable[[Any], Any]  # from the network's result to the loss's first argument
    decoder: Decoder | None = None  # with `reconstruct`

    @property
    def modules(self) -> tuple[nn.Module, ...]:
        decoder = [] if self.decoder is None else [self.decoder.layer]
        return (self.net.module, *([self.loss_fn] if isinstance(self.loss_fn, nn.Module) else []), *decoder)

    def loss(self, X: Sequence[Tensor], batch: MicroBatch) -> Tensor:
        given = self.net.module(*X, *(batch.inputs[i] for i in self.net.io.inputs))
        return one_number(self.loss_fn(self.output(given), batch.target), self.loss_fn)

    def state(self) -> list[dict[str, Any]]:
        return [m.state_dict() for m in self.modules]

    def load(self, given: Sequence[dict[str, Any]]) -> None:
        for module, state in zip(self.modules, given, strict=True):
            module.load_state_dict(state, strict=True)


def head_nets(
    program: CompiledProgram, given: Sequence[nn.Module] | None, loss_fn: Callable[[Any, Any], Tensor]
) -> dict[int, Head]:
    """Heads by rank: the program's, or the user's, from a boundary's tensors to the loss's first argument."""
    modules = given if given is not None else program.heads
    if len(modules) != program.plan.K - 1:
        raise UsageError(
            f"{len(modules)} heads for K = {program.plan.K} stages; pass heads=[...] with one module for every stage "
            f"but the last, or none: the program derives them"
        )
    found = {}
    for k, module in enumerate(modules):
        own = copy.deepcopy(loss_fn) if isinstance(loss_fn, nn.Module) else loss_fn
        io = own_io(module)
        if io is None:
            specs = program.plan.boundaries[k].specs
            found[k] = Head(Net(module, StageIO(specs, (), (), ())), own, lambda given: given)
        else:
            found[k] = Head(Net(module, io), own, _output_of(program, io))
    return found


def _output_of(program: CompiledProgram, io: StageIO) -> Callable[[Any], Any]:
    def output(given: Any) -> Any:
        return structured(program, io, given if isinstance(given, tuple) else (given,), True, NOT_OF_A_HEAD)

    return output


def add_head(w: Worker, heads: dict[int, Head], optimizer: Factory) -> None:
    """Give a worker the head of its stage, and an optimizer for it."""
    if w.rank in heads:
        w.head = heads[w.rank]
        parameters = [p for m in w.head.modules for p in m.to(w.device).train().parameters() if p.requires_grad]
        w.updater.add("head", parameters, optimizer)


def add_decoder(w: Worker, program: CompiledProgram, optimizer: Factory) -> None:
    """Give a worker's head a decoder to its stage's input, where both have the same form, and an optimizer for it."""
    if w.head is not None and w.head.decoder is None:
        inputs = [program.input_specs[i] for i in w.stage.io.inputs] if w.rank == 0 else w.specs[w.rank]
        decoder = make_decoder(inputs, w.specs[w.rank + 1], w.rank)
        if decoder is not None:
            w.head = replace(w.head, decoder=decoder)
            w.updater.add("decoder", list(decoder.layer.to(w.device).parameters()), optimizer)


def head(w: Worker, item: Instruction, slot: int) -> None:
    """p_{k+1} = ∂(the stage's own loss)/∂X_{k+1}: forward and backward of the head."""
    k, batch = item.boundary, w.batches[slot]
    assert w.head is not None
    X = w.leaves(k, w.values["X", k, slot])
    with w.autocast():
        loss = w.head.loss(X, batch)
        lost = reconstruction_of(w, X, slot)
    w.note(f"loss {w.rank}", loss.detach(), batch.weight)
    if lost is not None:
        w.note(f"reconstruction {w.rank}", lost.detach(), batch.weight)
        w.updater.due.add("decoder")
        loss = loss + w.settings.reconstruct * lost
    weight = w.weight(slot)
    torch.autograd.backward(loss if weight == 1.0 else loss * weight)
    w.updater.due.add("head")
    w.values["p", k, slot] = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in w.pick(k, X))


def reconstruction_of(w: Worker, X: Sequence[Tensor], slot: int) -> Tensor | None:
    """The error of the stage's input as its output shows it; None without `reconstruct`."""
    if not w.settings.reconstruct or w.head is None or w.head.decoder is None:
        return None
    batch = w.batches[slot]
    given = w.values["X", w.rank, slot] if w.rank else [batch.inputs[i] for i in w.stage.io.inputs]
    return w.head.decoder.loss(X, given)
