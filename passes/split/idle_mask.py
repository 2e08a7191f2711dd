"""The gate where a mask masks nothing: models of transformers then take another attention kernel, as a graph cannot.

The program always computes with the mask. It must equal the model bitwise with one that masks something, and but for
rounding with the one that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lpcompile.passes.split.gate import Forward, run_step


def idle_mask(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> int | None:
    """The position of a mask that masks nothing."""
    pairs = enumerate(zip(names, tensors, strict=True))
    return next((i for i, (name, t) in pairs if "mask" in name and bool(t.all())), None)


def masking(tensors: Sequence[torch.Tensor], at: int) -> list[torch.Tensor]:
    """The inputs with the last position of the first sample masked."""
    mask = tensors[at].clone()
    (mask[0] if mask.dim() > 1 else mask)[..., -1] = 0
    return [mask if i == at else t for i, t in enumerate(tensors)]


def near(
    model: nn.Module,
    reference: Forward,
    program: Forward,
    inputs: list[torch.Tensor],
    set_mode: Callable[[bool], None],
    written: Sequence[str] = (),
) -> bool:
    """Whether a training step of `program` is that of `reference` but for rounding."""
    flags = [(m, m.training) for m in model.modules()]
    try:
        model.train()
        set_mode(True)
        left, right = (run_step(model, f, inputs, True, written=written, digest=False) for f in (reference, program))
    finally:
        for module, flag in flags:
            module.training = flag
        set_mode(model.training)
    return left.text == right.text and all(_rounded(a, right.results.get(n)) for n, a in left.results.items())


def _rounded(a: Any, b: Any) -> bool:
    """Whether two results differ by rounding only."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return type(a) is type(b)
    if a.shape != b.shape or not a.is_floating_point():
        return torch.equal(a, b)
    most: float = torch.finfo(a.dtype).eps ** 0.5
    return float((a.double() - b.double()).norm()) <= most * max(float(a.double().norm()), most)
