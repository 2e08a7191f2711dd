"""λ or κ of single samples, kept by their index in the data set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Store:
    """Rows by sample index, on the rank's device; grows with the largest index.

    >>> store.put(index, tensors); store.take(index)
    """

    def __init__(self) -> None:
        self.rows: tuple[Tensor, ...] = ()
        self.seen = torch.zeros(0, dtype=torch.bool)

    def take(self, index: Tensor) -> tuple[Tensor, ...]:
        return tuple(rows[index.to(rows.device)] for rows in self.rows)

    def put(self, index: Tensor, values: tuple[Tensor, ...]) -> None:
        self._reserve(int(index.max()) + 1, values)
        for rows, value in zip(self.rows, values, strict=True):
            rows[index.to(rows.device)] = value.detach()
        self.seen[index.to(self.seen.device)] = True

    def ensure(self, index: Tensor, like: tuple[Tensor, ...]) -> None:
        """Rows of zeros for samples that have none yet."""
        self._reserve(int(index.max()) + 1, like)
        self.seen[index.to(self.seen.device)] = True

    def _reserve(self, count: int, like: tuple[Tensor, ...]) -> None:
        if count <= len(self.seen) and self.rows:
            return
        count = max(count, 2 * len(self.seen))
        rows = tuple(torch.zeros((count, *v.shape[1:]), dtype=v.dtype, device=v.device) for v in like)
        for new, old in zip(rows, self.rows, strict=False):
            new[: len(old)] = old
        seen = torch.zeros(count, dtype=torch.bool)
        seen[: len(self.seen)] = self.seen
        self.rows, self.seen = rows, seen

    def state(self) -> dict[str, Any]:
        return {"rows": list(self.rows), "seen": self.seen}

    def load(self, state: dict[str, Any]) -> None:
        self.rows, self.seen = tuple(t.clone() for t in state["rows"]), state["seen"].clone()
