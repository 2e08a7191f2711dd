"""Features replay on one rank: a forward that leaves no graph, and the same forward again when p has come."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

from lpcompile.core.schedule import Instruction
from lpcompile.runtime.engine import memory
from lpcompile.runtime.engine.worker import Worker, get_random, set_random


def stage_input(w: Worker, item: Instruction, slot: int) -> tuple[Tensor, ...]:
    """λ or X from the boundary below, ready to take gradients; nothing on the first rank."""
    ref = next((ref for ref in item.reads if ref.kind in ("lam", "X")), None)
    if ref is None:
        return ()
    return w.leaves(w.rank, w.values[ref.kind, ref.boundary, slot], gradients=not w.method.heads)


def features(w: Worker, item: Instruction, slot: int) -> None:
    """X_{k+1} for the rank above. Of this rank's own only the state of its random numbers is kept: its input is."""
    w.values["random", w.rank, slot] = get_random(w.device)
    with torch.no_grad():
        found, _ = w.run_stage(stage_input(w, item, slot), slot)
    w.values["X", w.rank + 1, slot] = found


def replay(w: Worker, item: Instruction, slot: int) -> None:
    """The stage's forward once more, now with a graph: the same input and random numbers, the weights of now."""
    lams, now = stage_input(w, item, slot), get_random(w.device)
    set_random(w.device, w.values["random", w.rank, slot])
    try:
        with w.statistics_kept(w.stage.module), memory.weighed(w, slot) if w.weigh else contextlib.nullcontext():
            found, _ = w.run_stage(lams, slot)
    finally:
        set_random(w.device, now)
    w.values["graph", w.rank, slot] = (w.pick(w.rank, lams) if lams else (), w.pick(w.rank + 1, found))
