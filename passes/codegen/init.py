"""The `__init__` of a class: its layers, containers and tensors under their own names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lpcompile.passes.codegen.leaf import empty
from lpcompile.passes.codegen.text.names import is_plain, quote
from lpcompile.passes.codegen.text.values import Names
from lpcompile.passes.codegen.torch_layers import constructor_default
from lpcompile.passes.codegen.tree import ModulePath, Part

Slot = tuple[ModulePath, str]  # a layer below a class, and one of its arguments


@dataclass(frozen=True)
class Instance:
    """How one unit is instantiated: the name of its class and the arguments."""

    name: str
    arguments: dict[str, Any]
    defaults: dict[str, Any]


def slots(part: Part, made: dict[ModulePath, Instance]) -> dict[Slot, Any]:
    """Every value in the constructor of a unit that may differ between units of one class."""
    found: dict[Slot, Any] = {}
    for below, relative in inside(part):
        if below.leaf is not None:
            found.update({(relative, k): v for k, v in below.leaf.arguments.items()})
        elif below is not part and below.path in made:
            found.update({(relative, k): v for k, v in made[below.path].arguments.items()})
        for name, tensor in own_tensors(below):
            found.update({((*relative, name), f"dim{i}"): n for i, n in enumerate(tensor.shape)})
    return found


def structure(part: Part, made: dict[ModulePath, Instance]) -> tuple[Any, ...]:
    """The structure of a unit's constructor: everything but the values in the slots. Equal for units of one class."""
    found: list[Any] = []
    for below, relative in inside(part):
        entry: Any = below.kind
        if below.leaf is not None:
            entry = below.leaf.shape
        elif below is not part and below.path in made:
            entry = made[below.path].name
        tensors = [(n, isinstance(t, nn.Parameter), t.dim(), t.dtype, t.requires_grad, _transient(below, n))
                   for n, t in own_tensors(below)]  # fmt: skip
        found.append((relative, entry, tuple(tensors)))
    return tuple(found)


def inside(part: Part) -> list[tuple[Part, ModulePath]]:
    """The unit and the parts that its constructor makes, down to layers and other units."""
    found: list[tuple[Part, ModulePath]] = [(part, ())]
    for name, child in part.children.items():
        if child.leaf is not None or (child.unit and child.kind != "sequential"):
            found.append((child, (name,)))
        else:
            found += [(below, (name, *relative)) for below, relative in inside(child)]
    return found


def own_tensors(part: Part) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers of a container itself, not of its children."""
    if part.leaf is not None:
        return []
    entries = [*part.module._parameters.items(), *part.module._buffers.items()]
    return [(name, tensor) for name, tensor in entries if tensor is not None]


def is_expression(part: Part) -> bool:
    """Whether one expression constructs a part: a layer, a unit, or a container of those."""
    if part.leaf is not None or part.unit:
        return True
    made_at_once = part.kind in ("list", "dict") and bool(part.children) and not own_tensors(part)
    return made_at_once and all(map(is_expression, part.children.values()))


def _transient(part: Part, name: str) -> bool:
    return name in part.module._non_persistent_buffers_set


class Constructor:
    """Writes the body of `__init__` of one unit; `text` gives the source of a slot's value."""

    def __init__(
        self, unit: Part, made: dict[ModulePath, Instance], names: Names, text: Callable[[Slot, Any], str]
    ) -> None:
        self.unit, self.made, self.names, self.text = unit, made, names, text
        self.lines: list[str] = []

    def write(self) -> list[str]:
        self._contents(self.unit, (), "self")
        return self.lines

    def _contents(self, part: Part, relative: ModulePath, expr: str) -> None:
        for name, tensor in own_tensors(part):
            self._tensor(part, name, tensor, relative, expr)
        for name, child in part.children.items():
            place = f"{expr}[{quote(name)}]" if part.kind == "dict" and expr != "self" else (
                f"{expr}.{name}" if is_plain(name) else f"{expr}._modules[{quote(name)}]")  # fmt: skip
            below = (*relative, name)
            made = self._expression(child, below)
            if made is not None:
                self.lines.append(f"{place} = {made}")
                continue
            self.lines.append(
                f"{place} = {self.names.use('nn')}.{'ModuleDict' if child.kind == 'dict' else 'Module'}()"
            )
            self._contents(child, below, place)

    def _tensor(self, part: Part, name: str, tensor: torch.Tensor, relative: ModulePath, expr: str) -> None:
        sizes = [self.text(((*relative, name), f"dim{i}"), n) for i, n in enumerate(tensor.shape)]
        made = empty(tensor, self.names, ".".join((*part.path, name)), sizes)
        if isinstance(tensor, nn.Parameter):
            frozen = "" if tensor.requires_grad else ", requires_grad=False"
            made = f"{self.names.use('nn')}.Parameter({made}{frozen})"
            self.lines.append(f"{expr}.{name} = {made}" if is_plain(name) else
                              f"{expr}._parameters[{quote(name)}] = {made}")  # fmt: skip
            return
        transient = _transient(part, name)
        if is_plain(name):
            rest = ", persistent=False" if transient else ""
            self.lines.append(f"{expr}.register_buffer({quote(name)}, {made}{rest})")
        else:
            self.lines.append(f"{expr}._buffers[{quote(name)}] = {made}")
            if transient:
                self.lines.append(f"{expr}._non_persistent_buffers_set.add({quote(name)})")

    def _expression(self, part: Part, relative: ModulePath) -> str | None:
        """The part as one expression, or None if it takes statements."""
        if part.leaf is not None:
            arguments = {k: self.text((relative, k), v) for k, v in self._arguments(part, relative).items()}
            return part.leaf.text(self.names, arguments)
        if part.unit and part.kind != "sequential":
            return self._instance(part, relative)
        if not is_expression(part):
            return None
        children = {n: self._expression(c, (*relative, n)) or "" for n, c in part.children.items()}
        return container(part.kind, children, self.names)

    def _arguments(self, part: Part, relative: ModulePath) -> dict[str, Any]:
        """The layer's own arguments, and those that only other instances of this class set."""
        assert part.leaf is not None
        return {
            **part.leaf.arguments,
            **{k: v for k, v in self.extra(relative).items() if k not in part.leaf.arguments},
        }

    def extra(self, relative: ModulePath) -> dict[str, Any]:
        """Arguments of a layer that other instances of the class set; a class of one unit has none."""
        return {}

    def _instance(self, part: Part, relative: ModulePath) -> str:
        made = self.made[part.path]
        texts = []
        for name, value in made.arguments.items():
            text = self.text((relative, name), value)
            if name not in made.defaults:
                texts.append(text)
            elif text != self.names.literal(made.defaults[name]):
                texts.append(f"{name}={text}")
        return f"{made.name}({', '.join(texts)})"


def container(kind: str, children: dict[str, str], names: Names) -> str:
    """`nn.Sequential(...)`, `nn.ModuleList([...])` or `nn.ModuleDict({...})`; runs of equal children are looped."""
    names.use("nn")
    keys, texts = list(children), list(children.values())
    counted = keys == [str(i) for i in range(len(keys))]
    if counted and kind != "dict":
        runs = _runs(texts)
        parts = [
            text if count < 3 else f"*[{text} for _ in range({count})]"
            for text, count in runs
            for _ in range(1 if count >= 3 else count)
        ]
        if kind == "sequential":
            return f"nn.Sequential({', '.join(parts)})"
        inner = parts[0][1:] if len(parts) == 1 and parts[0].startswith("*") else f"[{', '.join(parts)}]"
        return f"nn.ModuleList({inner})"
    entries = _entries(keys, texts)
    if kind == "sequential":
        names.use("OrderedDict")
        return f"nn.Sequential(OrderedDict({entries}))"
    return f"nn.ModuleDict({entries})"


def _entries(keys: list[str], texts: list[str]) -> str:
    parts, i = [], 0
    for text, count in _runs(texts):
        mine = keys[i : i + count]
        i += count
        first = int(mine[0]) if mine[0].isdigit() else None
        if count >= 3 and first is not None and mine == [str(first + n) for n in range(count)]:
            parts.append(f"**{{str(i): {text} for i in range({first}, {first + count})}}")
        else:
            parts += [f"{quote(key)}: {text}" for key in mine]
    return parts[0][2:] if len(parts) == 1 and parts[0].startswith("**") else "{" + ", ".join(parts) + "}"


def _runs(texts: list[str]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for text in texts:
        if runs and runs[-1][0] == text:
            runs[-1] = (text, runs[-1][1] + 1)
        else:
            runs.append((text, 1))
    return runs


def default_of(part: Part, relative: ModulePath, argument: str) -> Any:
    """The default of a constructor argument of a layer below `part`."""
    below = part.at(relative)
    return constructor_default(below.leaf.kind, argument) if below is not None and below.leaf is not None else None
