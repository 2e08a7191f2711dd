"""Micro-batches: a user's batch as tensors in the model's order, cut along the batch dimension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lpcompile.core.stage_io import TensorSpec, batch_of
from lpcompile.errors import InputError


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch on one rank.

    `weight` is the factor of its loss in the step's: its share of the step's samples, or of what else the loss is a
    mean of (see `lpcompile.runtime.engine.batches.shares`).

    `scale` is the loss scale at the start of its step; its gradients carry it while it is in flight. `summed` is the
    number of micro-batches whose losses add up to the step's, 1 where its loss is their mean.
    """

    inputs: tuple[Tensor, ...]
    target: Any
    index: Tensor | None
    size: int
    weight: float
    step: int
    scale: float = 1.0
    summed: int = 1
    fingerprint: tuple[int, ...] | None = None  # of the whole batch, on its first micro-batch, between processes

    def known_as(self, fingerprint: tuple[int, ...]) -> MicroBatch:
        return self if fingerprint == self.fingerprint else replace(self, fingerprint=fingerprint)


def micro_batches(
    inputs: Sequence[Tensor],
    specs: Sequence[TensorSpec],
    target: Any,
    index: Tensor | None,
    micro: int,
    step: int,
    size: int | None = None,
) -> list[MicroBatch]:
    """Cut a batch into `micro` parts that differ by at most one sample. `size` is required without inputs."""
    if inputs:
        size = batch_of(tuple(specs), [tuple(t.shape) for t in inputs])
    if size == 0:
        raise InputError(f"the batch of step {step} has no samples; does the loader's sampler or filter leave any?")
    if size is None:
        if micro > 1:
            raise InputError(
                f"no input has a batch dimension that could be cut into {micro} micro-batches; pass micro=1"
            )
        return [MicroBatch(tuple(inputs), target, index, 0, 1.0, step)]
    if micro == 1:
        return [MicroBatch(tuple(inputs), target, index, size, 1.0, step)]
    if size < micro:
        raise InputError(
            f"a batch of {size} cannot be cut into {micro} micro-batches; "
            f"pass drop_last=True to the loader, or a smaller micro=..."
        )
    ends = [size * i // micro for i in range(micro + 1)]
    found = []
    for first, end in pairwise(ends):
        own = tuple(cut(t, s, first, end) for t, s in zip(inputs, specs, strict=False))
        part = pytree.tree_map(lambda t, a=first, b=end: _cut_target(t, size, a, b), target)
        mine = None if index is None else index[first:end]
        found.append(MicroBatch(own, part, mine, end - first, (end - first) / size, step))
    return found


def first_samples(batch: MicroBatch, specs: Sequence[TensorSpec], count: int) -> MicroBatch:
    """The first samples of a micro-batch."""
    if batch.size <= count:
        return batch
    inputs = tuple(cut(t, s, 0, count) for t, s in zip(batch.inputs, specs, strict=False))
    target = pytree.tree_map(lambda t: _cut_target(t, batch.size, 0, count), batch.target)
    return replace(batch, inputs=inputs, target=target, index=None, size=count)


def cut(tensor: Tensor, spec: TensorSpec, first: int, end: int) -> Tensor:
    """These samples: of a matrix of pairs of samples, rows and columns."""
    for dim, multiple in enumerate(spec.batch):
        if multiple:
            tensor = tensor.narrow(dim, multiple * first, multiple * (end - first))
    return tensor


def _cut_target(value: Any, size: int, first: int, end: int) -> Any:
    if isinstance(value, Tensor) and value.dim() and len(value) == size:
        return value[first:end]
    return value


def to_device(value: Any, device: torch.device) -> Any:
    if device.type == "cpu":
        return value
    return pytree.tree_map(lambda t: t.to(device, non_blocking=True) if isinstance(t, Tensor) else t, value)
