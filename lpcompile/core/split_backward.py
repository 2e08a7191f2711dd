"""A backward in two parts, by torch's own zero-bubble functions: input gradients now, weight gradients later.

torch finds where the paths to the weights leave the paths to the inputs, keeps the gradients that pass there, and goes
on from them in the second part. It does so for each group of weights by itself, which is right for weights that join
the paths to the inputs in one place. All others (a weight that is used twice, one that never meets an input) get their
gradients in the first part, so that gradients are plain training's for any stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from lpcompile.core.micro_batches import SINCE
from lpcompile.errors import UsageError

Groups = list[dict[str, Any]]


def input_part(
    pairs: Sequence[tuple[Tensor, Tensor]], leaves: Sequence[Tensor], weights: Sequence[nn.Parameter], together: bool
) -> tuple[Sequence[Tensor | None], Groups]:
    """From ends with their gradients to those of the leaves, and what `weight_part` needs to go on.

    together: nothing is left for later.
    """
    ends, seeds = [end for end, _ in pairs], [seed for _, seed in pairs]
    if not pairs:
        return [None] * len(leaves), []
    if together or not leaves or (len(ends) > 1 and not all(_depends(end, leaves) for end in ends)):
        torch.autograd.backward(ends, seeds)
        return [t.grad for t in leaves], []
    copies = [end.clone() for end in ends]  # torch cuts them from the graph in place, where a layer may have saved them
    found, groups = _torch("stage_backward_input")(copies, seeds, list(leaves), iter(weights))
    later = [group for group in groups if len(group["intermediates"]) == 1]
    nodes = {node for group in later for node in group["params"]}
    now = [p for p in weights if get_gradient_edge(p).node not in nodes]
    if now:
        for p, g in zip(now, torch.autograd.grad(ends, now, seeds, True, allow_unused=True), strict=True):
            _add(p, p.grad, g)
    received = {seed.untyped_storage().data_ptr() for seed in seeds}
    return [g.clone() if g is not None and g.untyped_storage().data_ptr() in received else g for g in found], later


def weight_part(weights: Sequence[nn.Parameter], groups: Groups) -> None:
    """Add the gradients of these groups of weights to what the weights have."""
    if not groups:
        return
    before = [p.grad for p in weights]
    for p in weights:
        p.grad = None
    _torch("stage_backward_weight")(iter(weights), groups)
    for p, old in zip(weights, before, strict=True):
        _add(p, old, p.grad)


def _add(p: nn.Parameter, old: Tensor | None, new: Tensor | None) -> None:
    """As autograd does: in memory of the parameter's own, for `new` may be a tensor that another rank's next message
    is received into."""
    if new is None:
        p.grad = old
    elif new.layout != torch.strided:
        p.grad = new if old is None else old + new
    else:
        p.grad = torch.empty_like(p).copy_(new) if old is None else old.add_(new)


def _depends(end: Tensor, leaves: Sequence[Tensor]) -> bool:
    """Whether a path leads from this end to a leaf."""
    wanted = {get_gradient_edge(leaf).node for leaf in leaves}
    todo = [get_gradient_edge(end).node]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if node in wanted:
            return True
        following = [n for n, _ in node.next_functions if n is not None and n not in seen]
        todo += following
        seen.update(following)
    return False


def _torch(name: str) -> Any:
    try:
        from torch.distributed.pipelining import _backward

        return getattr(_backward, name)
    except (ImportError, AttributeError):
        raise UsageError(
            f"'zb' splits the backward with torch's {name}, which torch {torch.__version__} does not have; "
            f"use torch {SINCE} or newer, or method='1f1b'"
        ) from None
