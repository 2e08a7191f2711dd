"""Draws that the states of Python's and numpy's own generators do not show.

`random.Random()` of a model's own, numpy generators that a module or its file holds, `random.SystemRandom`, and
`os.urandom`. While a forward is recorded under `draws_seen`, `state` changes with every such draw, so that a branch
that follows from one is not taken for a constant.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

SOURCES = ((random.Random, "random"), (random.Random, "getrandbits"), (random.SystemRandom, "random"),
           (random.SystemRandom, "getrandbits"), (os, "urandom"))  # fmt: skip
PYTHONS_OWN = getattr(random.random, "__self__", None)  # its state shows its draws

_drawn = 0


def generators_in(values: Iterable[Any]) -> list[Any]:
    """The generators of Python and numpy among these values."""
    kinds: tuple[type, ...] = (random.Random,)
    if "numpy" in sys.modules:
        kinds += (sys.modules["numpy"].random.Generator, sys.modules["numpy"].random.RandomState)
    found = {id(v): v for v in values if isinstance(v, kinds) and not isinstance(v, random.SystemRandom)}
    return list(found.values())


def state_of(generator: Any) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if hasattr(generator, "bit_generator") else generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


_held: list[Any] = []  # of the model that is recorded


def state() -> tuple[Any, ...]:
    """Comparable with ==; different after a draw."""
    return (_drawn, *(repr(state_of(g)) for g in _held))


def saved() -> tuple[int, list[tuple[Any, Any]]]:
    return _drawn, [(g, state_of(g)) for g in _held]


def restore(before: tuple[int, list[tuple[Any, Any]]]) -> None:
    """As if nothing had been drawn since `saved`."""
    global _drawn
    _drawn = before[0]
    for generator, then in before[1]:
        set_state(generator, then)


@contextmanager
def draws_seen(model: nn.Module, files: Sequence[Any]) -> Iterator[None]:
    """Count the draws of this thread. files: the Python modules that define the model."""
    global _drawn
    thread = threading.get_ident()
    spaces = [*(vars(m) for m in model.modules()), *(vars(f) for f in files)]
    _held[:] = generators_in(v for space in spaces for v in space.values())
    before = state()[1:]
    sources: list[tuple[Any, str]] = [*SOURCES]
    if "numpy" in sys.modules:
        sources.append((sys.modules["numpy"].random, "default_rng"))
    patches = [(owner, name, vars(owner).get(name), getattr(owner, name)) for owner, name in sources]
    for owner, name, _, real in patches:
        setattr(owner, name, _counting(real, thread, seeded=name == "default_rng"))
    try:
        yield
    finally:
        for owner, name, own, _ in patches:
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        _drawn += state()[1:] != before
        _held.clear()


def _counting(real: Callable[..., Any], thread: int, seeded: bool) -> Callable[..., Any]:
    """`real`, counted, unless the state of a generator shows it. seeded: with arguments it always gives the same."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        global _drawn
        shown = bool(args) and (args[0] is PYTHONS_OWN or any(args[0] is g for g in _held))
        if threading.get_ident() == thread and not shown and not (seeded and (args or kwargs)):
            _drawn += 1
        return real(*args, **kwargs)

    return draw
