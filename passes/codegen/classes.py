"""The classes of a generated file: units that are alike share one, and what differs becomes a constructor argument."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from lpcompile.passes.codegen.forward import ForwardMethod
from lpcompile.passes.codegen.init import Constructor, Instance, Slot, default_of, slots, structure
from lpcompile.passes.codegen.text.names import RESERVED, camel, class_name, prose
from lpcompile.passes.codegen.text.values import Names
from lpcompile.passes.codegen.torch_layers import MISSING
from lpcompile.passes.codegen.tree import ModulePath, Part
from lpcompile.passes.codegen.units import Units

MAX_CLASS_ARGUMENTS = 6  # a class with more arguments than this is harder to read than two classes
_ARGUMENT_NAMES = {"num_features": "channels", "normalized_shape": "dim", "p": "rate", "num_channels": "channels"}


@dataclass
class UnitClass:
    """A class of the file: the units that share it, and what differs between them."""

    name: str
    units: list[Part]
    methods: dict[bool, ForwardMethod]
    arguments: dict[Slot, str]  # slots that the constructor takes as arguments, with the argument's name
    parameters: list[str]  # the arguments in the order of the constructor's signature
    defaults: dict[str, Any]

    def where(self) -> str:
        """The paths of the units, for the docstring: `layer1.N for N = 0 ... 17`, or a list."""
        paths = [".".join(u.path) for u in self.units]
        if len(paths) == 1:
            return prose(f"{paths[0]}{', in part' if self.units[0].cut else ''}.")
        columns = [list(dict.fromkeys(c)) for c in zip(*(u.path for u in self.units), strict=False)]
        free = [i for i, c in enumerate(columns) if len(c) > 1]
        level = len({len(u.path) for u in self.units}) == 1
        if level and len(free) == 1 and all(c.isdigit() for c in columns[free[0]]):
            numbers = columns[free[0]]
            steady = numbers == [str(int(numbers[0]) + i) for i in range(len(numbers))] and len(numbers) > 2
            shown = f"{numbers[0]} ... {numbers[-1]}" if steady else ", ".join(numbers)
            path = ".".join("N" if i == free[0] else c[0] for i, c in enumerate(columns))
            return prose(f"{path} for N = {shown}.")[:110]
        shown = ", ".join(paths) if len(", ".join(paths)) < 100 else f"{paths[0]} ... {paths[-1]}, {len(paths)} times"
        return prose(f"{shown}.")[:110]


class Classes:
    """The classes of the units of a stage, inner ones first, and how each unit is instantiated."""

    def __init__(self, units: Units) -> None:
        self.units, self.names, self.views = units, units.names, units.views
        self.found: list[UnitClass] = []
        self.instances: dict[ModulePath, Instance] = {}
        self._make()

    def _make(self) -> None:
        """Group the units that can share a class; inner units first, because the outer ones call them by name."""
        todo = [p for p in self.units.root.walk() if p.path in self.units.parts and p.kind != "sequential"]
        height = {p.path: self._height(p) for p in todo}
        for level in sorted(set(height.values())):
            groups: dict[Any, list[Part]] = {}
            methods = {}
            for part in [p for p in todo if height[p.path] == level]:
                methods[part.path] = self.units.methods(part)
                key = (part.original, tuple(methods[part.path].items()), structure(part, self.instances))
                groups.setdefault(key, []).append(part)
            groups = _apart(groups, self.instances)
            often = sorted(groups.values(), key=lambda parts: (parts[0].cut, -len(parts)))
            names = {id(parts): self._class_name(parts[0], [g[0] for g in often[:i]]) for i, parts in enumerate(often)}
            for parts in groups.values():
                self._add_class(names[id(parts)], parts, methods[parts[0].path])

    def _height(self, part: Part) -> int:
        below = [p for p in part.walk() if p is not part and p.path in self.units.parts and p.kind != "sequential"]
        return 1 + max((self._height(p) for p in below), default=0)

    def _class_name(self, part: Part, others: list[Part]) -> str:
        name = base = class_name(part.original)
        twins = [o for o in others if o.original == part.original]
        if twins and part.cut:
            at = min(v.spans[part.path][0] for v in self.views.values() if part.path in v.spans)
            name = base + ("Tail" if at < len(self.views[True].steps) / 2 else "Head")
        elif twins:  # name it after a child that the other does not have
            extra = [n for n in part.children if n not in twins[0].children and not n.isdigit()]
            name = base + (camel(extra[0]) if extra else "")
        count = 2
        while name in self.names.taken or name in RESERVED:
            name, count = f"{base}{count}", count + 1
        self.names.taken.add(name)
        return name

    def _add_class(self, name: str, parts: list[Part], methods: dict[bool, ForwardMethod]) -> None:
        arguments, defaults, vectors = class_arguments(parts, [slots(part, self.instances) for part in parts])
        parameters = sorted(vectors, key=lambda n: n in defaults)
        for i, part in enumerate(parts):
            self.instances[part.path] = Instance(name, {n: vectors[n][i] for n in parameters}, defaults)
        self.found.append(UnitClass(name, parts, methods, arguments, parameters, defaults))


class SharedConstructor(Constructor):
    """The constructor of a class that several units share: slots that differ are arguments."""

    def __init__(self, found: UnitClass, instances: dict[ModulePath, Instance], names: Names) -> None:
        self.found = found
        super().__init__(found.units[0], instances, names, self._slot)

    def _slot(self, slot: Slot, value: Any) -> str:
        return self.found.arguments.get(slot) or self.names.literal(value)

    def extra(self, relative: ModulePath) -> dict[str, Any]:
        return {k: None for (path, k) in self.found.arguments if path == relative}


def _apart(groups: dict[Any, list[Part]], instances: dict[ModulePath, Instance]) -> dict[Any, list[Part]]:
    """Split groups that would need too many arguments into units that are alike in every value."""
    found: dict[Any, list[Part]] = {}
    for key, parts in groups.items():
        values = [slots(part, instances) for part in parts]
        if len(class_arguments(parts, values)[2]) <= MAX_CLASS_ARGUMENTS:
            found[key] = parts
            continue
        for part, value in zip(parts, values, strict=True):
            found.setdefault((key, repr(sorted(value.items(), key=repr))), []).append(part)
    return found


def class_arguments(
    parts: list[Part], values: list[dict[Slot, Any]]
) -> tuple[dict[Slot, str], dict[str, Any], dict[str, list[Any]]]:
    """The constructor arguments of a shared class: one for every set of slots that differ together between the units.

    Gives the argument's name by slot, the defaults, and the values of each argument in the order of the units.
    """
    names: dict[Slot, str] = {}
    vectors: dict[str, list[Any]] = {}
    defaults: dict[str, Any] = {}
    for slot in dict.fromkeys(slot for value in values for slot in value):
        default = default_of(parts[0], *slot)
        vector = [value.get(slot, default) for value in values]
        partner = (slot[0], slot[1].replace("in_", "out_", 1))
        repeated = partner != slot and [value.get(partner) for value in values] == vector
        if all(type(v) is type(vector[0]) and v == vector[0] for v in vector):
            continue
        same = next(
            (n for n, v in vectors.items() if v == vector and list(map(type, v)) == list(map(type, vector))), None
        )
        name = same or _argument_name(slot, vectors, repeated)
        names[slot], vectors[name] = name, vector
        if default is not MISSING and default is not None and default in vector and same is None:
            defaults[name] = default
        elif default is MISSING or default is None:
            defaults.pop(name, None)
    return names, defaults, vectors


def _argument_name(slot: Slot, taken: Any, repeated: bool) -> str:
    path, argument = slot
    plain = _ARGUMENT_NAMES.get(argument, argument)
    if repeated and argument in ("in_channels", "in_features"):
        plain = "channels" if argument == "in_channels" else "features"
    if argument.startswith("dim") and argument[3:].isdigit():
        plain = "channels" if argument == "dim0" else f"{path[-1]}_{argument}"
    owners = [re.sub(r"\W", "_", owner) for owner in (path[-1] if path else "", "_".join(path))]
    for name in (plain, *(f"{owner}_{plain}" for owner in owners)):
        if name not in taken and name.isidentifier() and name.isascii() and name not in RESERVED:
            return name
    return f"argument_{len(taken)}"
