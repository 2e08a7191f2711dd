"""Take nested values apart into tensors and put them together again.

torch's pytree stops at dataclasses and plain objects; models return both (a dataclass of logits and loss, a cache of
keys and values), so this one goes on into them.

>>> leaves, tree = flatten({"logits": logits, "aux": (a, b)})
>>> tree.unflatten([f(t) for t in leaves])
"""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

NAMED_TUPLE: Any = namedtuple  # what pytree files all named tuples under
SCALARS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)


@dataclass(frozen=True)
class Tree:
    """The shape of a nested value: how many tensors it holds, and how to make it again from that many tensors."""

    count: int
    build: Callable[[Sequence[Any]], Any]
    text: str

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        return self.build(leaves)

    def __str__(self) -> str:
        return self.text


def flatten(value: Any) -> tuple[list[torch.Tensor], Tree]:
    """The tensors of `value` in a fixed order, and the tree that rebuilds it from such a list."""
    leaves: list[torch.Tensor] = []
    tree = _flatten(value, leaves, set())
    return leaves, tree


def tensors_of(value: Any) -> list[torch.Tensor]:
    return flatten(value)[0]


def _flatten(value: Any, leaves: list[torch.Tensor], seen: set[int]) -> Tree:
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return Tree(1, lambda ts: ts[0], "*")
    if isinstance(value, SCALARS) or id(value) in seen:
        return Tree(0, lambda ts: value, repr(value) if isinstance(value, SCALARS) else "...")
    children, make, text = _open(value)
    if make is None:
        return Tree(0, lambda ts: value, type(value).__name__)
    trees = [_flatten(child, leaves, seen | {id(value)}) for child in children]
    count = sum(t.count for t in trees)
    if count == 0 and text.startswith("object"):
        return Tree(0, lambda ts: value, type(value).__name__)

    def build(ts: Sequence[Any]) -> Any:
        parts, at = [], 0
        for tree in trees:
            parts.append(tree.build(ts[at : at + tree.count]))
            at += tree.count
        return make(parts)

    return Tree(count, build, f"{text}({', '.join(map(str, trees))})")


def _open(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any] | None, str]:
    """Children of a container, a function that remakes it from new children (None for a leaf), and its name."""
    kind = type(value)
    if kind in pytree.SUPPORTED_NODES or _is_namedtuple(value):
        node = pytree.SUPPORTED_NODES[kind if kind in pytree.SUPPORTED_NODES else NAMED_TUPLE]
        children, context = node.flatten_fn(value)
        keys = f"{list(value)}" if isinstance(value, dict) else ""
        return list(children), lambda parts: node.unflatten_fn(parts, context), kind.__name__ + keys
    if isinstance(value, (torch.nn.Module, type)) or callable(value):
        return [], None, kind.__name__
    if dataclasses.is_dataclass(value) or (hasattr(value, "__dict__") and _holds_tensor(value, 0)):
        fields = dict(vars(value)) if hasattr(value, "__dict__") else _slots(value)
        names = list(fields)

        def make(parts: list[Any]) -> Any:
            made = object.__new__(kind)
            for name, part in zip(names, parts, strict=True):
                object.__setattr__(made, name, part)
            return made

        return [fields[n] for n in names], make, f"object {kind.__name__}{names}"
    if isinstance(value, dict):  # a dict subclass that nobody registered: rebuild it through its own constructor
        order = list(value)
        return [value[k] for k in order], lambda parts: kind(zip(order, parts, strict=True)), f"{kind.__name__}{order}"
    return [], None, kind.__name__


def _is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _slots(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def _holds_tensor(value: Any, depth: int) -> bool:
    """Whether a plain object holds a tensor near its surface; a deep search would walk whole configurations."""
    if isinstance(value, torch.Tensor):
        return True
    if depth > 4 or isinstance(value, (torch.nn.Module, type, *SCALARS)):
        return False
    if isinstance(value, dict):
        return any(_holds_tensor(v, depth + 1) for v in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_tensor(v, depth + 1) for v in value)
    return any(_holds_tensor(v, depth + 1) for v in vars(value).values()) if hasattr(value, "__dict__") else False
