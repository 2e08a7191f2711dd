"""Function caches that a recording on fake tensors must not fill, and objects that hold fake tensors.

A `functools.lru_cache` around a function that returns tensors lives outside the model; after a recording it would
return fake tensors to the user.
"""

from __future__ import annotations

import enum
import functools
import gc
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.graph.tree import SCALARS, Tree

KIND = functools._lru_cache_wrapper


class KnownCaches:
    """The function caches of this process, found by a walk over all its objects and known from then on.

    Each cache holds a reference to its type. While the type has as many references as caches that are known and alive,
    there is no new one, and the walk (a tenth of a second and more, in a large program) is left out.
    """

    def __init__(self) -> None:
        self._caches: list[weakref.ref[Any]] = []
        self._others = -1  # references to the type that are not those of known caches; -1: they are not counted
        self._frozen = 0  # objects that `gc.freeze` hid from the last walk

    def alive(self) -> list[Any]:
        found = [cache for known in self._caches if (cache := known()) is not None]
        frozen, others = gc.get_freeze_count(), sys.getrefcount(KIND) - len(found)
        if self._others < 0 or (frozen, others) != (self._frozen, self._others):
            ids = set(map(id, found))  # some may be frozen since
            found += [o for o in gc.get_objects() if type(o) is KIND and id(o) not in ids]
            self._caches = [weakref.ref(cache) for cache in found]
            self._others = sys.getrefcount(KIND) - len(found) if instances_are_counted() else -1
            self._frozen = frozen
        return found


def instances_are_counted() -> bool:
    """Whether this Python counts an instance as a reference to its type: it does not for types that are immortal."""
    before = sys.getrefcount(KIND)
    one = functools.lru_cache(len)
    return sys.getrefcount(KIND) == before + isinstance(one, KIND)


KNOWN = KnownCaches()


class FunctionCaches:
    """The function caches of this process; `forget_fakes()` clears those that have stored a fake tensor since."""

    def __init__(self) -> None:
        self._caches = KNOWN.alive()
        self._misses = [c.cache_info().misses for c in self._caches]

    def forget_fakes(self) -> None:
        for i, cache in enumerate(self._caches):
            misses = cache.cache_info().misses
            if misses != self._misses[i]:
                if holds_fake(cache, depth=4):
                    cache.cache_clear()
                self._misses[i] = cache.cache_info().misses


def forget_fakes() -> None:
    """Remove fake tensors from every dict of the process: caches that the user's code keeps itself."""
    gc.collect()  # recordings that are over
    for holder in gc.get_objects():  # one walk; gc.get_referrers would walk all objects for each fake tensor
        if type(holder) is dict:
            for key in [k for k, v in holder.items() if _is_fake(v) and isinstance(k, (str, int, tuple))]:
                del holder[key]


def live_tensors() -> set[int]:
    """The ids of all tensors of the process: those that the user's caches hold are no results of a later forward."""
    return {id(o) for o in gc.get_objects() if issubclass(type(o), torch.Tensor)}


def _is_fake(value: Any) -> bool:
    """By its type alone: the objects of a process include proxies whose `__class__` runs code."""
    return issubclass(type(value), FakeTensor)


def holds_fake(value: Any, depth: int) -> bool:
    """Whether an object refers to a fake tensor within `depth` references."""
    if isinstance(value, FakeTensor):
        return True
    if depth == 0 or isinstance(value, (str, int, float, type)) or (callable(value) and depth < 4):
        return False
    return any(holds_fake(v, depth - 1) for v in gc.get_referents(value))


def refuse_closed(leaves: Sequence[Any], tree: Tree) -> None:
    """Refuse an output without tensors, or with some inside an object that cannot be opened."""
    if not leaves:
        raise Unrecordable("", f"the output holds no tensor that can be found: it is {tree}", "")
    closed = [c for c in tree.constants if not isinstance(c, (*SCALARS, enum.Enum, type, nn.Module))]
    if any(hasattr(c, "__next__") or holds_fake(c, 3) for c in closed):
        kinds = ", ".join(sorted({type(c).__name__ for c in closed}))
        raise Unrecordable("", f"the output holds tensors inside an object that cannot be opened ({kinds})", "")
