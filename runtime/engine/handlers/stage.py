"""Instructions of a rank's own stage: forward, backward in one part or two, and features replay.

Features replay (`fr`) is a forward that leaves no graph, and the same forward again when p has come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from lpcompile.core.schedule import Instruction
from lpcompile.core.split_backward import input_part, weight_part
from lpcompile.errors import TrainingError
from lpcompile.runtime.engine import memory, versions
from lpcompile.runtime.engine.handlers.boundary import feel, terms, times
from lpcompile.runtime.engine.handlers.end_of_step import stash_tied
from lpcompile.runtime.engine.worker import Worker, get_random, set_random


def forward(w: Worker, item: Instruction, slot: int) -> None:
    """X_{k+1} = stage_k(λ_k), or the loss, with its graph; for `fr` without one."""
    if any(ref.kind == "random" for ref in item.writes):
        return features(w, item, slot)
    lams = stage_input(w, item, slot)
    weighed = memory.weighed(w, slot) if w.weigh else contextlib.nullcontext()
    with versions.held(w, slot), weighed, w.attributes.noted(slot):
        found, loss = w.run_stage(lams, slot)
    leaves = w.pick(w.rank, lams) if lams else ()
    if loss is not None:
        batch = w.batches[slot]
        w.note("loss", loss.detach() * batch.summed if batch.summed > 1 else loss.detach(), batch.weight)
        weight = w.weight(slot)
        w.values["graph", w.rank, slot] = (leaves, loss if weight == 1.0 else loss * weight)
    else:
        w.values["graph", w.rank, slot] = (leaves, w.pick(w.rank + 1, found))
        w.values["X", w.rank + 1, slot] = tuple(t.detach() for t in found)


def stage_input(w: Worker, item: Instruction, slot: int) -> tuple[Tensor, ...]:
    """λ or X of the boundary below, ready to take gradients; empty on the first rank."""
    ref = next((ref for ref in item.reads if ref.kind in ("lam", "X")), None)
    if ref is None:
        return ()
    return w.leaves(w.rank, w.values[ref.kind, ref.boundary, slot], gradients=not w.method.heads)


def features(w: Worker, item: Instruction, slot: int) -> None:
    """X_{k+1} without a graph. Only the random state is kept for the replay, beside the input."""
    w.values["random", w.rank, slot] = get_random(w.device)
    with torch.no_grad():
        found, _ = w.run_stage(stage_input(w, item, slot), slot)
    w.values["X", w.rank + 1, slot] = found


def replay(w: Worker, item: Instruction, slot: int) -> None:
    """The stage's forward again, with a graph: the same input and random numbers, the current weights."""
    lams, now = stage_input(w, item, slot), get_random(w.device)
    set_random(w.device, w.values["random", w.rank, slot])
    try:
        weighed = memory.weighed(w, slot) if w.weigh else contextlib.nullcontext()
        with w.statistics_kept(w.stage.module), weighed, w.attributes.noted(slot):
            found, _ = w.run_stage(lams, slot)
    finally:
        set_random(w.device, now)
    w.values["graph", w.rank, slot] = (w.pick(w.rank, lams) if lams else (), w.pick(w.rank + 1, found))


def backward(w: Worker, item: Instruction, slot: int) -> None:
    """The stage's backward, from the loss or from the method's adjoint at X_{k+1} (of d, p and κ)."""
    leaves, ends = w.values["graph", w.rank, slot]
    factor = w.rescale(slot)
    with versions.held(w, slot), w.attributes.of(slot), hooks_explained(w):
        if w.last and w.method.heads and not ends.requires_grad:
            pass  # a stage without parameters, and no gradient goes further down
        elif w.last:
            ends.backward(None if factor == 1.0 else torch.full_like(ends, factor))
        else:
            given = terms(w, item, w.rank + 1, slot)
            feel(w, w.rank + 1, slot, given)
            seeds = times(factor, w.method.adjoint(given))
            note_norm(w, f"gradient {w.rank + 1}", seeds, slot)
            pairs = [(end, seed) for end, seed in zip(ends, seeds, strict=True) if end.requires_grad]
            if pairs:
                torch.autograd.backward([end for end, _ in pairs], [seed for _, seed in pairs])
    w.updater.due.add("stage")
    over(w, slot)
    if item.writes:
        found = tuple(torch.zeros_like(t) if t.grad is None else t.grad for t in leaves)
        w.values["p", w.rank, slot] = times(1 / factor, found)
        note_norm(w, f"p {w.rank}", found, slot)


@contextlib.contextmanager
def hooks_explained(w: Worker) -> Iterator[None]:
    """A hook may expect each backward right after its forward, which is not so with several micro-batches."""
    try:
        yield
    except Exception as error:
        hooked = next((n for n, m in w.stage.module.named_modules() if m._backward_hooks), None)
        if hooked is None or len(w.batches) < 2:
            raise
        raise TrainingError(
            f"backward of stage {w.rank} fails while {len(w.batches)} micro-batches are in flight "
            f"({type(error).__name__}: {error}); {hooked} has a backward hook, which may expect each backward "
            f"right after its forward: train with method='bp', or remove the hook"
        ) from error


def note_norm(w: Worker, name: str, gradients: Sequence[Tensor], slot: int) -> None:
    """In a step that is checked: the size of a gradient at a boundary, for one sample's weight."""
    if w.look and w.method.aux and not w.method.exact and gradients:
        size = torch.stack([g.detach().float().norm() for g in gradients]).norm()
        w.note(name, size / (w.weight(slot) * w.rescale(slot)), w.batches[slot].weight)


def backward_input(w: Worker, item: Instruction, slot: int) -> None:
    """p for the boundary below; the remaining work for the weights takes the graph's place."""
    leaves, made = w.values["graph", w.rank, slot]
    ends = [made] if w.last else list(made)
    seeds = [torch.ones_like(made)] if w.last else w.method.adjoint(terms(w, item, w.rank + 1, slot))
    pairs = [(end, seed) for end, seed in zip(ends, seeds, strict=True) if end.requires_grad]
    # else each group of weights would recompute the whole stage; and compiled code cannot be split
    together = w.settings.recomputes(w.rank) or w.settings.compile
    with w.attributes.of(slot):
        found, groups = input_part(pairs, leaves, weights(w), together, w.put_off)
    w.values["graph", w.rank, slot] = groups
    gradients = zip(leaves, found, strict=True)
    w.values["p", w.rank, slot] = tuple(torch.zeros_like(t) if g is None else g for t, g in gradients)
    w.updater.due.add("stage")
    stash_tied(w)


def backward_weight(w: Worker, item: Instruction, slot: int) -> None:
    """Weight gradients that `backward_input` left."""
    with w.attributes.of(slot):
        weight_part(w.values["graph", w.rank, slot])
    over(w, slot)


def over(w: Worker, slot: int) -> None:
    """The graph of a micro-batch is used up."""
    w.values["graph", w.rank, slot] = None
    w.graph_bytes.pop(slot, None)
    w.attributes.over(slot)
    stash_tied(w)


def weights(w: Worker) -> list[nn.Parameter]:
    """The stage's parameters, and a loss's own."""
    every = {id(p): p for p in (*w.stage.module.parameters(), *w.updater.parameters)}
    return [p for p in every.values() if p.requires_grad]
