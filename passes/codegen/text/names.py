"""Names and text from a user's model, made safe for generated code.

A module's name is any string without a dot. It is written as an identifier only if Python and nn.Module read it back as
the same name, and as a quoted string otherwise.
"""

from __future__ import annotations

import builtins
import keyword
import re

from torch import nn

# Names that generated code uses itself.
RESERVED = frozenset({"self", "torch", "nn", "F", "math", "numpy", "operator", "random", "OrderedDict", "partial",
                      "rebuild", *dir(builtins), *keyword.kwlist, *keyword.softkwlist})  # fmt: skip
_TAKEN = frozenset({*dir(nn.Module), *vars(nn.Module())})


def is_plain(name: str) -> bool:
    """Whether `self.name` in a class body means exactly the entry `name` of a module's registries.

    Not ASCII: Python normalises such identifiers. Two leading underscores: Python mangles them.
    """
    good = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
    return good and not name.startswith("__") and name not in _TAKEN


def identifier(text: str, fallback: str) -> str:
    """A lower-case variable name like `text`."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    if not name or not name.isidentifier():
        return fallback
    return f"{name}_" if name in RESERVED else name


def class_name(text: str) -> str:
    """A class name like `text`."""
    name = re.sub(r"\W+", "", text, flags=re.ASCII).lstrip("_0123456789")
    return name if name and name not in RESERVED else "Block"


def camel(text: str) -> str:
    """`down_sample` as `DownSample`."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", text, flags=re.ASCII) if part)


def quote(text: str) -> str:
    """A string literal, in double quotes unless they need escapes."""
    literal = ascii(text)
    if literal.startswith("'") and '"' not in literal:
        return '"' + literal[1:-1] + '"'
    return literal


def prose(text: str) -> str:
    """Text from a model for a docstring or a comment: one line that can end neither."""
    safe = "".join(c if c.isprintable() and c not in '\\"' else "?" for c in text)
    return safe if len(safe) <= 300 else safe[:297] + "..."
