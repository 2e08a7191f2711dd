"""Where a rank's memory goes: parameters, gradients, optimizer state, buffers, and the process as a whole."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from lpcompile.runtime import versions
from lpcompile.runtime.worker import Worker


def of(w: Worker) -> dict[str, int]:
    """Bytes of one rank, by what they are for."""
    modules: list[nn.Module] = [w.stage.module, *(net.module for net in w.auxnets.values()), *w.kappanets.values()]
    parameters = [p for m in modules for p in m.parameters()]
    states = [t for o in w.updater.optimizers().values() for s in o.state.values() for t in s.values()]
    return {
        "parameters": _bytes(parameters),
        "gradients": _bytes(p.grad for p in parameters),
        "optimizer": _bytes(states),
        "buffers": _bytes(b for m in modules for b in m.buffers()),
        "messages": _bytes(t for ts in getattr(w.transport, "buffers", {}).values() for t in ts),
        "versions": _bytes(versions.older_tensors(w)),
        "stores": _bytes(t for store in w.stores.values() for t in store.rows),
    }


def process() -> int:
    """The most memory that this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _bytes(tensors: Iterable[Any]) -> int:
    found = {id(t): t.nbytes for t in tensors if isinstance(t, Tensor) and t.device.type != "meta"}
    return sum(found.values())
