"""Values from a graph or a module as source text: constants as literals, functions and classes by import."""

from __future__ import annotations

import enum
import functools
import importlib
import importlib.machinery
import inspect
import math
import sys
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.errors import EmitError
from lpcompile.passes.codegen.text.names import RESERVED, quote

_TORCH: tuple[tuple[str, Any], ...] = (
    ("nn.", nn), ("F.", F), ("torch.", torch), ("torch.special.", torch.special), ("torch.linalg.", torch.linalg),
    ("torch.fft.", torch.fft), ("nn.init.", nn.init), ("torch.Tensor.", torch.Tensor),
)  # fmt: skip
_PLAIN_ATTRIBUTES = (torch.layout, torch.memory_format, torch.qscheme)


class Unprintable(Exception):
    """A value without source text; the caller adds where it was found."""


@functools.cache
def _torch_names() -> dict[Any, str]:
    names: dict[Any, str] = {}
    public = [(prefix, owner, name) for prefix, owner in _TORCH for name in sorted(vars(owner)) if name[0] != "_"]
    hidden = [(p, o, n) for p, o in (("torch.", torch), ("torch._C._nn.", torch._C._nn)) for n in sorted(vars(o))]
    for prefix, owner, name in [*public, *hidden]:
        value = getattr(owner, name, None)
        if name.startswith("__") or not callable(value) or isinstance(value, ModuleType):
            continue
        try:
            names.setdefault(value, f"{prefix}{name}")
        except TypeError:  # not hashable
            continue
    return names


class Names:
    """The imports and the module-level names of one generated file."""

    def __init__(self) -> None:
        self.lines: set[str] = set()
        self.taken: set[str] = set()
        self.constants: dict[int, tuple[Any, str, str]] = {}  # module-level constants: object, name, source
        self.helpers: set[str] = set()
        self._given: dict[int, tuple[Any, str]] = {}

    def ref(self, value: Any) -> str:
        """The expression for a function or class; adds its import."""
        try:
            known = _torch_names().get(value)
        except TypeError:
            known = None
        if known is not None:
            self._torch_import(known)
            return known
        if id(value) not in self._given:
            self._given[id(value)] = (value, self._import(value))
        return self._given[id(value)][1]

    def constants_lines(self) -> list[list[str]]:
        """The assignments of the constants, by name."""
        return [[f"{name} = {source}"] for _, name, source in sorted(self.constants.values(), key=lambda c: c[1])]

    def use(self, name: str) -> str:
        """Import `nn`, `F`, `torch`, `math` or another known name, and return it."""
        self._torch_import(f"{name}.")
        return name

    def _torch_import(self, name: str) -> None:
        top = name.split(".")[0]
        lines = {"nn": "from torch import nn", "F": "import torch.nn.functional as F", "torch": "import torch",
                 "math": "import math", "random": "import random", "numpy": "import numpy",
                 "OrderedDict": "from collections import OrderedDict",
                 "partial": "from functools import partial"}  # fmt: skip
        self.lines.add(lines[top])

    def _import(self, value: Any) -> str:
        module, path = location(value)
        parts = path.split(".")
        if module == "builtins":
            return path
        top, alias = parts[0], parts[0]
        if module.startswith("torch") and module.split(".")[0] == "torch":
            self.lines.add("import torch" if _imported_with_torch(module) else f"import {module}")
            return f"{module}.{path}"
        if module in ("_operator", "operator"):
            self.lines.add("import operator")
            return f"operator.{path}"
        count = 2
        while alias in self.taken or alias in RESERVED:
            alias, count = f"{top}{count}", count + 1
        self.taken.add(alias)
        self.lines.add(f"from {module} import {top}" + (f" as {alias}" if alias != top else ""))
        return ".".join([alias, *parts[1:]])

    def literal(self, value: Any) -> str:
        """The source of a constant. Exact types only: a subclass may hold more than it prints."""
        kind = type(value)
        if isinstance(value, enum.Enum):
            return f"{self.ref(kind)}[{quote(value.name)}]"
        if value is None or kind in (bool, int) or value is Ellipsis:
            return "..." if value is Ellipsis else repr(value)
        if kind is float:
            return repr(value).replace("e+", "e") if math.isfinite(value) else f"float({quote(repr(value))})"
        if kind is complex:
            return f"complex({self.literal(value.real)}, {self.literal(value.imag)})"
        if kind is str:
            return quote(value)
        if kind is bytes:
            return repr(value)
        if kind is torch.device:
            self.use("torch")
            return f"torch.device({quote(str(value))})"
        if kind is torch.dtype or isinstance(value, _PLAIN_ATTRIBUTES):
            self.use("torch")
            return repr(value)
        if kind is slice:
            parts = ", ".join(self.literal(v) for v in (value.start, value.stop, value.step))
            return f"slice({parts})"
        if kind is torch.Size:
            self.use("torch")
            return f"torch.Size([{', '.join(map(self.literal, value))}])"
        return self._collection(value, kind)

    def _collection(self, value: Any, kind: type[Any]) -> str:
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return f"{self.ref(kind)}({', '.join(map(self.literal, value))})"
        if kind is tuple:
            return f"({', '.join(map(self.literal, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, list) and kind.__module__ in ("builtins", "torch.fx.immutable_collections"):
            return f"[{', '.join(map(self.literal, value))}]"
        if isinstance(value, dict) and kind.__module__ in ("builtins", "torch.fx.immutable_collections"):
            return "{" + ", ".join(f"{self.literal(k)}: {self.literal(v)}" for k, v in value.items()) + "}"
        if kind in (set, frozenset):
            items = ", ".join(sorted(map(self.literal, value)))
            return f"{kind.__name__}([{items}])" if kind is frozenset or not value else "{" + items + "}"
        if kind is range:
            return f"range({value.start}, {value.stop}, {value.step})"
        if kind is functools.partial:
            self.use("partial")
            arguments = [self.ref(value.func), *map(self.literal, value.args)]
            if not all(k.isidentifier() for k in value.keywords):
                raise Unprintable(f"{value!r}")
            return f"partial({', '.join([*arguments, *(f'{k}={self.literal(v)}' for k, v in value.keywords.items())])})"
        owner = getattr(value, "__self__", None)
        if isinstance(owner, type) and getattr(owner, getattr(value, "__name__", ""), None) == value:
            return f"{self.ref(owner)}.{value.__name__}"  # a method of a class, such as Function.apply
        if isinstance(value, type) or callable(value):
            return self.ref(value)
        raise Unprintable(f"a {kind.__module__}.{kind.__qualname__} object")


def location(value: Any) -> tuple[str, str]:
    """Module and qualified name of a function or class; importing them gives this object (checked)."""
    module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    if isinstance(value, torch.jit.ScriptFunction):
        module, _, path = value.qualified_name.removeprefix("__torch__.").rpartition(".")
    if type(value).__name__ in ("OpOverload", "OpOverloadPacket"):
        return "torch", str(value) if str(value).startswith("ops.") else f"ops.{value}"
    name = f"{module}.{path}"
    if not isinstance(module, str) or not isinstance(path, str) or not all(p.isidentifier() for p in name.split(".")):
        raise Unprintable(f"{name}, which no import statement can name (it is made inside a function)")
    if module == "__main__" or not _findable(module):
        raise Unprintable(f"{name}, whose module another process cannot import by name")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        raise Unprintable(f"{name}, which importing does not find") from None
    if found is not value:
        raise Unprintable(f"{name}, where importing finds another object of that name")
    return module, path


def _imported_with_torch(module: str) -> bool:
    """Whether `import torch` imports this submodule of torch too."""
    return module == "torch" or hasattr(torch, module.split(".")[1] if "." in module else module)


@functools.cache
def _findable(module: str) -> bool:
    """Whether a fresh process with the same path would find the module's package."""
    top = module.split(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    return any(_spec(finder, top) is not None for finder in sys.meta_path)


def _spec(finder: Any, name: str) -> Any:
    find = getattr(finder, "find_spec", None)
    return find(name, None) if find is not None else None


def refuse(where: str, reason: str, remedy: str) -> EmitError:
    """The error for something that cannot be written; the caller raises it."""
    return EmitError(f"{where} cannot be written as code: {reason}; {remedy}")


def is_default(function: Any, name: str, value: Any) -> bool:
    """Whether a keyword argument equals the function's default. `training` is always written."""
    if not isinstance(value, (bool, int, float, str, type(None))) or name == "training":
        return False
    default = _defaults(function).get(name, inspect.Parameter.empty)
    return type(default) is type(value) and default == value


@functools.lru_cache(maxsize=1024)
def _defaults(function: Any) -> dict[str, Any]:
    if function is F.scaled_dot_product_attention:  # a builtin: it has no signature to ask
        return {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": False}
    if getattr(function, "__module__", None) not in ("torch.nn.functional", "torch.functional"):
        return {}
    try:
        return {n: p.default for n, p in inspect.signature(function).parameters.items()}
    except (TypeError, ValueError):
        return {}
