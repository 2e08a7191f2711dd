"""How much memory a process needed at most, in tensors that were alive at once.

>>> with Alive() as alive:
...     trainer.step(x, y)
>>> alive.most                      # bytes of tensors made in there that were alive at once
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations make, from when they are made until they are gone.

    Activations, gradients, messages and whatever else is made inside count; what was there before does not. A method
    that keeps things for some steps shows its full size when the mode has been on for longer than that.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now: int = 0
        self.most: int = 0
        self.known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {id(s) for s in _storages((args, kwargs))}
        found = func(*args, **(kwargs or {}))
        for storage in _storages(found):
            if id(storage) not in before and id(storage) not in self.known:
                self._add(storage)
        return found

    def _add(self, storage: torch.UntypedStorage) -> None:
        name, size = id(storage), storage.nbytes()
        self.known[name] = size
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, name)

    def _gone(self, name: int) -> None:
        self.now -= self.known.pop(name)


def _storages(value: Any) -> list[torch.UntypedStorage]:
    return [
        t.untyped_storage() for t in pytree.tree_leaves(value) if isinstance(t, Tensor) and t.layout == torch.strided
    ]
