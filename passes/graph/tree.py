"""Take nested values apart into tensors and put them together again.

torch's pytree stops at dataclasses and plain objects; models return both (a dataclass of logits and loss, a cache of
keys and values), so this one opens them.

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

NAMED_TUPLE: Any = namedtuple  # pytree's key for all named tuples
SCALARS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.layout)


@dataclass(frozen=True)
class Tree:
    """The shape of a nested value: how many tensors it holds, and how to make it again from that many tensors."""

    count: int
    build: Callable[[Sequence[Any]], Any]
    text: str
    constants: tuple[Any, ...] = ()  # leaves that are not tensors
    print: str = ""  # contents of objects among the constants when the tree was made: they are mutable

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        return self.build(leaves)

    def matches(self, other: Tree) -> bool:
        """Whether two values have the same structure and, beside their tensors, hold the same things."""
        if self.text != other.text or len(self.constants) != len(other.constants) or self.print != other.print:
            return False
        return all(_equal(a, b) for a, b in zip(self.constants, other.constants, strict=True))

    def __str__(self) -> str:
        return self.text


def flatten(value: Any) -> tuple[list[torch.Tensor], Tree]:
    """The tensors of `value` in a fixed order, and the tree that rebuilds it from such a list."""
    leaves: list[torch.Tensor] = []
    tree = _flatten(value, leaves, set())
    objects = [c for c in tree.constants if not isinstance(c, (*SCALARS, type)) and hasattr(c, "__dict__")]
    if objects:
        held = [sorted(vars(c).items(), key=lambda kv: kv[0]) for c in objects if not callable(c)]
        tree = dataclasses.replace(tree, print=repr(held)[:10_000])
    return leaves, tree


def _equal(a: Any, b: Any) -> bool:
    try:
        return a is b or (type(a) is type(b) and bool(a == b)) or (a != a and b != b)
    except (ValueError, RuntimeError, TypeError):  # arrays and the like
        return type(a).__name__ == "ndarray" and a.shape == b.shape and bool((a == b).all())


def _flatten(value: Any, leaves: list[torch.Tensor], seen: set[int]) -> Tree:
    if isinstance(value, torch.Tensor):
        leaves.append(value)
        return Tree(1, lambda ts: ts[0], "*")
    if isinstance(value, SCALARS) or id(value) in seen:
        return Tree(0, lambda ts: value, repr(value) if isinstance(value, SCALARS) else "...", (value,))
    children, make, text = _open(value)
    if make is None:
        return Tree(0, lambda ts: value, type(value).__name__, (value,))
    trees = [_flatten(child, leaves, seen | {id(value)}) for child in children]
    count = sum(t.count for t in trees)
    if count == 0 and text.startswith("object"):
        return Tree(0, lambda ts: value, type(value).__name__, (value,))

    def build(ts: Sequence[Any]) -> Any:
        parts, at = [], 0
        for tree in trees:
            parts.append(tree.build(ts[at : at + tree.count]))
            at += tree.count
        return make(parts)

    constants = tuple(c for t in trees for c in t.constants)
    return Tree(count, build, f"{text}({', '.join(map(str, trees))})", constants)


def _open(value: Any) -> tuple[list[Any], Callable[[list[Any]], Any] | None, str]:
    """Children of a container, a function that remakes it from new children (None for a leaf), and its name."""
    kind = type(value)
    if kind in pytree.SUPPORTED_NODES or is_namedtuple(value):
        node = pytree.SUPPORTED_NODES[kind if kind in pytree.SUPPORTED_NODES else NAMED_TUPLE]
        children, context = node.flatten_fn(value)
        keys = f"{list(value)}" if isinstance(value, dict) else ""
        return list(children), lambda parts: node.unflatten_fn(parts, context), kind.__name__ + keys
    if isinstance(value, (torch.nn.Module, type)) or callable(value):
        return [], None, kind.__name__
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):  # a subclass nobody registered
        return list(value), lambda parts: kind(parts), kind.__name__
    if isinstance(value, dict):  # a dict subclass that nobody registered: rebuild it through its own constructor
        order = list(value)
        return [value[k] for k in order], lambda parts: kind(zip(order, parts, strict=True)), f"{kind.__name__}{order}"
    fields = fields_of(value)
    if dataclasses.is_dataclass(value) or any(_holds_tensor(v, 1) for v in fields.values()):
        names = list(fields)

        def make(parts: list[Any]) -> Any:
            made = object.__new__(kind)
            for name, part in zip(names, parts, strict=True):
                object.__setattr__(made, name, part)
            return made

        return [fields[n] for n in names], make, f"object {kind.__name__}{names}"
    return [], None, kind.__name__


def is_namedtuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def fields_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, in `__slots__` or not."""
    slots = [s for kind in type(value).__mro__ for s in _names(kind.__dict__.get("__slots__", ()))]
    found = {s: getattr(value, s) for s in slots if s not in ("__dict__", "__weakref__") and hasattr(value, s)}
    return {**found, **getattr(value, "__dict__", {})}


def _names(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


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
    return any(_holds_tensor(v, depth + 1) for v in fields_of(value).values())
