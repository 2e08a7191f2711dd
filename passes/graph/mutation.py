"""Attributes that forward assigns.

A graph replays tensors, not `self.calls += 1`, so a module that assigns its attributes in forward has to stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lpcompile.passes.graph.tree import SCALARS, flatten

INTERNAL = frozenset(vars(nn.Module())) - {"training"}  # nn.Module's own entries in a module's __dict__
Snapshot = dict[str, tuple[dict[str, Any], dict[str, int]]]


@dataclass(frozen=True)
class Change:
    """Module `path` assigned `attribute` in forward."""

    path: str
    attribute: str
    what: str  # "buffer", "tensor" or "value"


def snapshot(root: nn.Module) -> Snapshot:
    """The attributes and buffers of every module, to compare with later."""
    return {
        path: (
            {k: _freeze(v) for k, v in vars(module).items() if k not in INTERNAL},
            {k: id(b) for k, b in module._buffers.items()},
        )
        for path, module in root.named_modules()
    }


def changes(before: Snapshot, root: nn.Module, kept_whole: set[str]) -> list[Change]:
    """Attributes that forward assigned in modules outside the `kept_whole` ones (which replay themselves)."""
    found = []
    for path, module in root.named_modules():
        if path not in before or inside(path, kept_whole):
            continue
        attributes, buffers = before[path]
        found += [Change(path, k, "buffer") for k, b in module._buffers.items() if buffers.get(k) != id(b)]
        for key, value in vars(module).items():
            if key in INTERNAL or (key in attributes and _same(attributes[key], _freeze(value))):
                continue
            if isinstance(value, SCALARS) and value is not None:
                found.append(Change(path, key, "value"))
            elif _has_tensors(value):
                found.append(Change(path, key, "tensor"))
            elif isinstance(value, (list, dict, set)):
                found.append(Change(path, key, "value"))
    return found


def inside(path: str, roots: set[str]) -> bool:
    """Whether a module is one of `roots` or lies below one."""
    while path and path not in roots:
        path = path.rpartition(".")[0]
    return bool(path)


def _freeze(value: Any) -> Any:
    return list(value) if isinstance(value, list) else dict(value) if isinstance(value, dict) else value


def _same(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if isinstance(a, SCALARS) and isinstance(b, SCALARS):
        return type(a) is type(b) and (a == b or a != a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(v is b[k] for k, v in a.items())
    return False


def _has_tensors(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or bool(flatten(value)[0])
