"""Reconstruction: a local loss alone lets a stage forget what its own head needs no more, but later stages would.

With `reconstruct` = w, stage k < K-1 minimises loss(head_k(X_{k+1})) + w |D_k(X_{k+1}) - X_k|² / var(X_k), where the
decoder D_k is one layer at every position, which costs next to nothing (InfoPro, Wang et al. 2021, has a network).
Where the stage shrinks an image, X_k is averaged to the size of X_{k+1}.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lpcompile.core.stage_io import TensorSpec

SEED = 1  # of fresh decoders: the same on every rank, independent of the user's generators
LEAST_VARIANCE = 1e-6  # of X_k: constant inputs have no details to keep


@dataclass(frozen=True)
class Decoder:
    """The layer from one of a stage's outputs to one of its inputs, and which these are."""

    layer: nn.Module
    seen: int  # among the boundary's tensors
    wanted: int  # among the stage's inputs

    def loss(self, X: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensor:
        target = inputs[self.wanted].detach()
        made: Tensor = self.layer(X[self.seen]).to(target.dtype)
        if target.dim() == 4:
            target = F.adaptive_avg_pool2d(target, (made.shape[-2], made.shape[-1]))
        error: Tensor = (made - target).square().mean() / target.var().clamp_min(LEAST_VARIANCE)
        return error


def make_decoder(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rank: int) -> Decoder | None:
    """Between the largest floats whose samples are alike: images, or features at as many positions; or None."""
    pairs = [(j, i) for j, out in enumerate(outputs) for i, given in enumerate(inputs) if _alike(given, out)]
    if not pairs:
        return None
    seen, wanted = max(pairs, key=lambda pair: (outputs[pair[0]].nbytes, inputs[pair[1]].nbytes))
    source, target = outputs[seen], inputs[wanted]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + rank)
        if len(target.shape) == 4:
            layer: nn.Module = nn.Conv2d(source.shape[1], target.shape[1], 1, dtype=source.dtype)
        else:
            layer = nn.Linear(source.shape[-1], target.shape[-1], dtype=source.dtype)
    return Decoder(layer, seen, wanted)


def _alike(given: TensorSpec, out: TensorSpec) -> bool:
    """Whether both are floats of which the batch is the first dimension, with the same positions (images: any)."""
    first = all(not s.batch or (s.batch[0] == 1 and not any(s.batch[1:])) for s in (given, out))
    plain = all(s.dtype.is_floating_point for s in (given, out)) and len(given.shape) == len(out.shape) > 1
    return first and plain and (len(given.shape) == 4 or given.shape[1:-1] == out.shape[1:-1])
