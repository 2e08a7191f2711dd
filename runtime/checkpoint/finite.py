"""A checkpoint never holds values that are not finite, nor does a run end well with them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lpcompile.errors import TrainingError
from lpcompile.runtime.checkpoint import named
from lpcompile.runtime.comm import exchange

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine


REMEDY = "lower the learning rate, or clip gradients (clip=1)"
STATISTICS = ("running_mean", "running_var")


def known_at_start(trainer: Engine) -> set[str]:
    """The tensors that are not finite before training, as a mask of -inf. Weights and statistics that are NaN are
    refused, on all ranks."""
    given = named.tensors(trainer)
    found = not_finite(given.items())
    free = {n for w in trainer.workers for n, _ in w.stage.module.named_buffers() if not n.endswith(STATISTICS)}
    names = {n: n.removeprefix(named.MODEL) for n in found if n.startswith(named.MODEL)}
    wrong = {n: given[n] for n, name in names.items() if name not in free and bool(given[n].isnan().any())}
    check(trainer, wrong, "they were so before training", "load whole weights into the model")
    return set(found)


def check(trainer: Engine, tensors: dict[str, Tensor], besides: str, remedy: str = REMEDY) -> None:
    """Refuse state with infinite or undefined values, on all ranks, naming rank, tensor and step.

    Tensors that were so before training, as a mask of -inf, are the model's own business.
    """
    name = next((n for n in not_finite(tensors.items()) if n not in trainer.infinite_at_start), None)
    mine = None
    if name is not None:
        count = int((~torch.isfinite(tensors[name])).sum())
        rank = trainer.first_rank + _rank_of(trainer, name)
        mine = (
            f"step {trainer.steps}, rank {rank}: {count} of {tensors[name].numel()} values of "
            f"{name.removeprefix('model/')} are not finite; {besides}; {remedy}"
        )
    found = exchange.gathered(mine, trainer.control) if trainer.distributed else [mine]
    wrong = next((text for text in found if text), None)
    if wrong is not None:
        raise TrainingError(wrong)


def check_end(trainer: Engine) -> None:
    """A run does not end well with weights or statistics that are not finite."""
    trainer.flush()
    check(trainer, named.tensors(trainer), "training ended with them")


def _rank_of(trainer: Engine, name: str) -> int:
    """The rank whose stage has the tensor, also where all of them are in this process."""
    if own := re.match(r"rank (\d+)/", name):
        return trainer.plan.rank_of(int(own[1]))
    plain = name.removeprefix("model/").removeprefix("optimizer/")
    for w in trainer.workers:
        if any(n == plain or plain.startswith(f"{n}/") for n in w.stage.module.state_dict()):
            return trainer.plan.rank_of(w.rank)
    return trainer.rank


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """The names of tensors with values that are infinite or undefined."""
    numbers = [(n, t) for n, t in tensors if t.device.type != "meta" and (t.is_floating_point() or t.is_complex())]
    return [n for n, t in numbers if not bool(torch.isfinite(t).all())]
