"""Memory of a rank by purpose, the peak of a process, and the peak of live tensors.

>>> with Alive() as alive:
...     trainer.step(x, y)
>>> alive.most                      # peak of bytes in tensors that were made inside and alive at once
"""

from __future__ import annotations

import contextlib
import resource
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lpcompile.runtime.engine import versions
from lpcompile.runtime.engine.worker import Worker


def of_rank(team: Sequence[Worker]) -> dict[str, int]:
    """Bytes of one rank by purpose: of its stages together."""
    each = [of(w) for w in team]
    found = {name: sum(one[name] for one in each) for name in each[0]}
    return found | {"messages": each[0]["messages"]}  # their transport is the process's


def of(w: Worker) -> dict[str, int]:
    """Bytes of one stage by purpose."""
    modules: list[nn.Module] = [w.stage.module, *(net.module for net in w.auxnets.values()), *w.kappanets.values(),
                                *(w.head.modules if w.head is not None else ())]  # fmt: skip
    parameters = [p for m in modules for p in m.parameters()]
    states = [t for o in w.updater.optimizers().values() for s in o.state.values() for t in s.values()]
    return {
        "parameters": _bytes(parameters),
        "gradients": _bytes(p.grad for p in parameters),
        "optimizer": _bytes(states),
        "buffers": _bytes(b for m in modules for b in m.buffers()),
        "activations": w.peak_graph_bytes,
        "messages": _bytes(t for ts in getattr(w.transport, "buffers", {}).values() for t in ts),
        "versions": _bytes(versions.older_tensors(w)),
        "stores": _bytes(t for store in w.stores.values() for t in store.rows),
        **({"replay": w.buffers.nbytes(w.rank)} if w.buffers is not None else {}),
    }


@contextlib.contextmanager
def weighed(w: Worker, slot: int) -> Iterator[None]:
    """Add up what a forward saves for its backward, each storage once, without parameters and buffers."""
    own = {t.untyped_storage().data_ptr() for t in (*w.stage.module.parameters(), *w.stage.module.buffers())}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
    w.graph_bytes[slot] = sum(found.values())
    w.peak_graph_bytes = max(w.peak_graph_bytes, sum(w.graph_bytes.values()))


def reset_peak() -> None:
    """Start the peak of `process` anew, where the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def process() -> int:
    """Peak memory of this process since `reset_peak`, in bytes."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the storages that operations allocate, until they are freed.

    Activations, gradients, messages and all other tensors made inside count; earlier ones do not. A method that keeps
    tensors over several steps reaches its peak after as many steps in this mode.
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


def _bytes(tensors: Iterable[Any]) -> int:
    found = {id(t): t.nbytes for t in tensors if isinstance(t, Tensor) and t.device.type != "meta"}
    return sum(found.values())


def _storages(value: Any) -> list[torch.UntypedStorage]:
    return [
        t.untyped_storage() for t in pytree.tree_leaves(value) if isinstance(t, Tensor) and t.layout == torch.strided
    ]
