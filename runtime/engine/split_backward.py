"""The instructions `backward_input` and `backward_weight`, a stage's backward in two parts: `core.split_backward`."""

from __future__ import annotations

import torch
from torch import nn

from lpcompile.core.schedule import Instruction
from lpcompile.core.split_backward import input_part, weight_part
from lpcompile.runtime.engine.handlers import Handler, stash_tied, terms
from lpcompile.runtime.engine.worker import Worker


def backward_input(w: Worker, item: Instruction, slot: int) -> None:
    """p for the boundary below; what is left to do for the weights takes the graph's place."""
    leaves, made = w.values["graph", w.rank, slot]
    ends = [made] if w.last else list(made)
    seeds = [torch.ones_like(made)] if w.last else w.method.adjoint(terms(w, item, w.rank + 1, slot))
    pairs = [(end, seed) for end, seed in zip(ends, seeds, strict=True) if end.requires_grad]
    # else each group of weights would recompute the whole stage, and compiled code has no parts
    together = w.settings.recomputes(w.rank) or w.settings.compile
    found, groups = input_part(pairs, leaves, weights(w), together)
    w.values["graph", w.rank, slot] = groups
    gradients = zip(leaves, found, strict=True)
    w.values["p", w.rank, slot] = tuple(torch.zeros_like(t) if g is None else g for t, g in gradients)
    w.updater.due.add("stage")
    stash_tied(w)


def backward_weight(w: Worker, item: Instruction, slot: int) -> None:
    """The weights' gradients that the first part left."""
    weight_part(weights(w), w.values["graph", w.rank, slot])
    w.values["graph", w.rank, slot] = None
    w.graph_bytes.pop(slot, None)
    stash_tied(w)


def weights(w: Worker) -> list[nn.Parameter]:
    """The stage's parameters, and a loss's own."""
    every = {id(p): p for p in (*w.stage.module.parameters(), *w.updater.parameters)}
    return [p for p in every.values() if p.requires_grad]


HANDLERS: dict[str, Handler] = {"backward_input": backward_input, "backward_weight": backward_weight}
