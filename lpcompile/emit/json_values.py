"""Nested values as plain JSON: the arguments and results of a program, stored as data.

>>> decode(encode({"logits": tensor, "past": None}, "the output"))

Tensors keep only their position. Classes are named by module and qualified name, checked when written and imported when
read; nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from lpcompile.errors import EmitError
from lpcompile.passes.codegen.text.values import Unprintable, location
from lpcompile.passes.graph.tree import NAMED_TUPLE, Tree, fields_of, flatten, is_namedtuple

OPAQUE = "opaque"  # a default that is no data: it equals nothing that a caller passes
_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def tree_to_json(tree: Tree, what: str) -> Any:
    """The structure of a tree, with placeholders for its tensors."""
    return encode(tree.unflatten([torch.empty(0) for _ in range(tree.count)]), what)


def tree_from_json(data: Any) -> Tree:
    return flatten(decode(data))[1]


def encode(value: Any, what: str) -> Any:
    """`value` as JSON; `what` names it in the error message."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, torch.Tensor):
        return {"tensor": True}
    if isinstance(value, enum.Enum):
        return {"enum": _named(type(value), what), "name": value.name}
    if isinstance(value, _TORCH):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, type) or (callable(value) and not hasattr(value, "__dict__")):
        return {"class": _named(value, what)}
    return _container(value, what)


def _container(value: Any, what: str) -> Any:
    kind = type(value)
    if kind in (list, tuple):
        return {kind.__name__: [encode(v, what) for v in value]}
    if kind is dict:
        return {"dict": [[encode(k, what), encode(v, what)] for k, v in value.items()]}
    if kind is slice:
        return {"slice": [encode(v, what) for v in (value.start, value.stop, value.step)]}
    if kind is torch.Size:
        return {"size": list(value)}
    if kind in pytree.SUPPORTED_NODES or is_namedtuple(value):
        node = pytree.SUPPORTED_NODES[kind if kind in pytree.SUPPORTED_NODES else NAMED_TUPLE]
        children, context = node.flatten_fn(value)
        return {"node": _named(kind, what), "children": [encode(c, what) for c in children],
                "context": encode(context, what)}  # fmt: skip
    if isinstance(value, (list, tuple)):
        return {"sequence": _named(kind, what), "items": [encode(v, what) for v in value]}
    if isinstance(value, dict):
        return {"mapping": _named(kind, what), "items": [[encode(k, what), encode(v, what)] for k, v in value.items()]}
    if callable(value) and hasattr(value, "__qualname__"):
        return {"class": _named(value, what)}
    fields = fields_of(value)
    if dataclasses.is_dataclass(value) or fields or type(value).__init__ is object.__init__:
        return {"object": _named(kind, what), "fields": {k: encode(v, what) for k, v in fields.items()}}
    raise EmitError(
        f"{what} holds a {kind.__module__}.{kind.__qualname__}, which cannot be stored as data; "
        f"return tensors in plain containers, dataclasses or named tuples"
    )


def _named(value: Any, what: str) -> list[str]:
    try:
        return list(location(value))
    except Unprintable as error:
        raise EmitError(
            f"{what} holds {error}; define the class at the top level of a module that can be imported"
        ) from None


def _import(name: Any, base: Any = object) -> Any:
    """Import an object by name. With `base` it must be a subclass: nothing else may be called with data from a file."""
    module, path = name
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise EmitError(f"{module}.{path}, which the program was compiled with, cannot be imported: {error}") from None
    if base is not object and not (isinstance(found, type) and issubclass(found, base)):
        raise EmitError(f"{module}.{path} in model.json is not what emit writes there; emit the program again")
    return found


_DECODERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tensor": lambda d: torch.empty(0),
    "float": lambda d: float(d["float"]),
    "enum": lambda d: _import(d["enum"], enum.Enum)[d["name"]],
    "torch": lambda d: getattr(torch, d["torch"]),
    "device": lambda d: torch.device(d["device"]),
    "complex": lambda d: complex(*d["complex"]),
    "class": lambda d: _import(d["class"]),
    "list": lambda d: [decode(v) for v in d["list"]],
    "tuple": lambda d: tuple(decode(v) for v in d["tuple"]),
    "dict": lambda d: {decode(k): decode(v) for k, v in d["dict"]},
    "slice": lambda d: slice(*(decode(v) for v in d["slice"])),
    "size": lambda d: torch.Size(d["size"]),
    "sequence": lambda d: _import(d["sequence"], (list, tuple))([decode(v) for v in d["items"]]),
    "mapping": lambda d: _import(d["mapping"], dict)((decode(k), decode(v)) for k, v in d["items"]),
    OPAQUE: lambda d: object(),
}


def decode(data: Any) -> Any:
    """The value that `encode` wrote, with empty tensors in place of its tensors."""
    if not isinstance(data, dict):
        return data
    if "node" in data:
        kind, children = _import(data["node"]), [decode(c) for c in data["children"]]
        if kind not in pytree.SUPPORTED_NODES:
            kind = _import(data["node"], tuple)
        node = pytree.SUPPORTED_NODES[kind if kind in pytree.SUPPORTED_NODES else NAMED_TUPLE]
        return node.unflatten_fn(children, decode(data["context"]))
    if "object" in data:
        kind = _import(data["object"])
        if not isinstance(kind, type):
            raise EmitError(f"{data['object']} in model.json is no class; emit the program again")
        made: Any = object.__new__(kind)
        for name, value in data["fields"].items():
            object.__setattr__(made, name, decode(value))
        return made
    for key, make in _DECODERS.items():
        if key in data:
            return make(data)
    raise EmitError(f"{data!r} in model.json is no value that emit writes; emit the program again")
