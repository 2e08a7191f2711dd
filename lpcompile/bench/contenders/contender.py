"""A contender of a bench: one rank of one way to train."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from lpcompile.bench.contenders.work import Work, call, logits


class Contender:
    """One rank. `sent`: bytes that it sent in the last step; `micro`: micro-batches of a step."""

    micro = 1
    sent = 0

    def __init__(self, given: Work) -> None:
        self.work, self.batches = given, given.forever()
        self.spent: dict[str, float] = {}

    @contextlib.contextmanager
    def clocked(self, part: str) -> Iterator[None]:
        begin = time.thread_time()
        yield
        self.spent[part] = self.spent.get(part, 0.0) + time.thread_time() - begin

    def step(self) -> None:
        raise NotImplementedError

    def use(self, micro: int) -> None:
        """Set the number of micro-batches per step."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the micro-batches in flight."""

    def accuracy(self) -> float:
        """Of the model on the test samples, the same on all ranks (all of them call it)."""
        raise NotImplementedError

    def held(self) -> int:
        """Bytes that stay from step to step: weights, buffers, optimizer state."""
        raise NotImplementedError


def accuracy_of(model: nn.Module, test: Iterable[Any]) -> float:
    """The share of test samples that a model in evaluation mode tells right."""
    right = count = 0
    model.eval()
    with torch.no_grad():
        for x, y, *_ in test:
            found = logits(call(model, x)).argmax(-1) == y
            right, count = right + int(found.sum()), count + found.numel()
    model.train()
    return right / max(count, 1)


def compiled_module(module: nn.Module) -> nn.Module:
    found: Any = torch.compile(module, dynamic=False)
    assert isinstance(found, nn.Module)
    return found
