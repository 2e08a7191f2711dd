"""What differs between units that share a class becomes an argument of its constructor."""

from __future__ import annotations

import re
from typing import Any

from lpcompile.passes.codegen.init import Instance, Slot, default_of, slots
from lpcompile.passes.codegen.names import RESERVED
from lpcompile.passes.codegen.torch_layers import MISSING
from lpcompile.passes.codegen.tree import ModulePath, Part

MAX_CLASS_ARGUMENTS = 6  # a class with more arguments than this is harder to read than two classes
_ARGUMENT_NAMES = {"num_features": "channels", "normalized_shape": "dim", "p": "rate", "num_channels": "channels"}


def apart(groups: dict[Any, list[Part]], made: dict[ModulePath, Instance]) -> dict[Any, list[Part]]:
    """Split groups that would need too many arguments into units that are alike in every value."""
    found: dict[Any, list[Part]] = {}
    for key, parts in groups.items():
        values = [slots(part, made) for part in parts]
        if len(class_arguments(parts, values)[2]) <= MAX_CLASS_ARGUMENTS:
            found[key] = parts
            continue
        for part, value in zip(parts, values, strict=True):
            found.setdefault((key, repr(sorted(value.items(), key=repr))), []).append(part)
    return found


def class_arguments(
    parts: list[Part], values: list[dict[Slot, Any]]
) -> tuple[dict[Slot, str], dict[str, Any], dict[str, list[Any]]]:
    """The slots that differ between units, by the name of the argument that sets them; defaults; values by unit."""
    everything = list(dict.fromkeys(slot for value in values for slot in value))
    names: dict[Slot, str] = {}
    vectors: dict[str, list[Any]] = {}
    defaults: dict[str, Any] = {}
    for slot in everything:
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
