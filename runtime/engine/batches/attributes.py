"""Attributes that a user's layer sets in forward and reads in backward, one set for each micro-batch in flight.

A reversible block notes the state of the random generator in forward, to draw the same numbers again in backward. With
several micro-batches in flight the next forward overwrites it: backward would rebuild other activations, in silence. So
each backward sees the attributes as its own forward left them; in between they are the newest ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

_OURS = ("torch.", "lpcompile.")
_INTERNAL = frozenset(vars(nn.Module()))
_Place = tuple[nn.Module, str]
_GONE = object()


class Attributes:
    """Those of the layers of a stage that are not of torch.nn; of them, those that any forward has changed."""

    def __init__(self, stage: nn.Module) -> None:
        self.layers = [m for m in stage.modules() if m is not stage and not type(m).__module__.startswith(_OURS)]
        self.moving: dict[tuple[int, str], _Place] = {}
        self.kept: dict[int, dict[tuple[int, str], Any]] = {}  # by micro-batch

    @contextlib.contextmanager
    def noted(self, slot: int) -> Iterator[None]:
        """Around the forward of a micro-batch."""
        before = [dict(vars(m)) for m in self.layers]
        yield
        for m, old in zip(self.layers, before, strict=True):
            for name, value in vars(m).items():
                key = id(m), name
                if name not in _INTERNAL and key not in self.moving and old.get(name, _GONE) is not value:
                    self.moving[key] = m, name
                    for earlier in self.kept.values():
                        earlier[key] = old.get(name, _GONE)
        if self.moving:
            self.kept[slot] = {key: vars(m).get(name, _GONE) for key, (m, name) in self.moving.items()}

    @contextlib.contextmanager
    def of(self, slot: int) -> Iterator[None]:
        """Around the backward of a micro-batch. What backward itself sets stays where no forward has run since."""
        newest = {key: vars(m).get(name, _GONE) for key, (m, name) in self.moving.items()}
        own = {key: value for key, value in self.kept.get(slot, {}).items() if value is not newest[key]}
        self._put(own)
        try:
            yield
        finally:
            self._put({key: newest[key] for key in own})

    def over(self, slot: int) -> None:
        self.kept.pop(slot, None)

    def _put(self, values: dict[tuple[int, str], Any]) -> None:
        for key, value in values.items():
            module, name = self.moving[key]
            if value is _GONE:
                vars(module).pop(name, None)
            else:
                vars(module)[name] = value
