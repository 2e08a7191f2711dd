"""κ by a network: two pointwise layers over λ's channels, the last one zero at first, so that κ starts at 0."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lpcompile.core.stage_io import TensorSpec


class KappaNet(nn.Module):
    """κ of a boundary from its λ: each tensor by its own pair of layers.

    Images are mixed over their channels (dimension 1), everything else over its last dimension.
    """

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        super().__init__()
        self.dims = [channel_dim(len(s.shape)) for s in specs]
        self.layers = nn.ModuleList()
        for spec, dim in zip(specs, self.dims, strict=True):
            width = spec.shape[dim]
            last = nn.Linear(width, width, dtype=spec.dtype)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.layers.append(nn.Sequential(nn.Linear(width, width, dtype=spec.dtype), nn.ReLU(), last))

    def forward(self, *lams: Tensor) -> tuple[Tensor, ...]:
        found = []
        for lam, layer, dim in zip(lams, self.layers, self.dims, strict=True):
            found.append(layer(lam.movedim(dim, -1)).movedim(-1, dim).contiguous())
        return tuple(found)


def channel_dim(ndim: int) -> int:
    return 1 if ndim == 4 else ndim - 1


def rows(kappa: Tensor) -> int:
    """Number of rows of channels that a pointwise network maps with the same weights."""
    return kappa.numel() // kappa.shape[channel_dim(kappa.dim())]


def kappa_net(specs: Sequence[TensorSpec]) -> KappaNet:
    """A new network, independent of the user's random state: all ranks make the same one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return KappaNet(specs)
