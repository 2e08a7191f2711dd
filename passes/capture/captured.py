"""The captured model: the artefact that the passes after capture read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lpcompile.passes.capture.attribute_guard import AttributeGuard
from lpcompile.passes.capture.signature import Signature
from lpcompile.passes.graph.module import TwoModeModule
from lpcompile.passes.graph.tree import Tree


@dataclass(frozen=True)
class CaptureInfo:
    """Everything about a captured model beside its graph, kept as `captured._lp`."""

    model: nn.Module
    signature: Signature
    trees: dict[bool, Tree]
    notes: tuple[str, ...]
    kept_whole: tuple[str, ...]  # modules that are leaves though they are not layers
    batch_free: bool  # any number of samples, which may be cut into micro-batches
    small_inputs: list[torch.Tensor] | None  # inputs with smaller images that run the same graph
    written: tuple[str, ...]  # parameters that forward writes into
    attribute_guard: AttributeGuard


class Captured(TwoModeModule):
    """The captured model: call it as the model, read `graph`."""

    _lp: CaptureInfo

    def recompile(self) -> Any:
        code = super().recompile()
        flat = type(self).forward

        def forward(self: Captured, *args: Any, **kwargs: Any) -> Any:
            leaves = flat(self, *self._lp.signature.flat(args, kwargs))
            return self._lp.trees[self.training].unflatten(leaves)

        type(self).forward = forward
        return code
