"""Attributes that a recording has turned into constants, so that a later change is noticed instead of ignored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from lpcompile.passes.graph.mutation import INTERNAL, inside
from lpcompile.passes.graph.tree import SCALARS

Facts = dict[str, dict[str, Any]]


class AttributeGuard:
    """Numbers, flags and hooks of the traced modules; leaves read theirs at every call and need no guard, and `own` are
    attributes that forward itself sets."""

    def __init__(self, model: nn.Module, leaves: set[str], own: Collection[str] = ()) -> None:
        self.model, self.own = model, frozenset(own)
        self.modules = [(p, m) for p, m in model.named_modules() if not inside(p, leaves)]
        self.facts: dict[bool, Facts] = {}
        for mode in (True, False):
            self.accept(mode)
        for facts in self.facts[not model.training].values():  # recorded with every flag switched
            facts["training"] = not model.training

    def accept(self, mode: bool) -> None:
        """Take the current attributes as those of the graph of this mode."""
        self.facts[mode] = {path: self._facts(path, module) for path, module in self.modules}

    def changed(self, mode: bool) -> str | None:
        """The first attribute that differs from the graph of this mode, in words; None if none does."""
        for path, module in self.modules:
            before, now = self.facts[mode][path], self._facts(path, module)
            for key in {**before, **now}:
                if key not in before or key not in now or before[key] != now[key]:
                    return f"{_join(path, key)} is {_shown(now, key)} now and was {_shown(before, key)}"
        return None

    def _facts(self, path: str, module: nn.Module) -> dict[str, Any]:
        held = {k: v for k, v in vars(module).items() if k not in INTERNAL and isinstance(v, SCALARS)}
        facts: dict[str, Any] = {k: v for k, v in held.items() if _join(path, k) not in self.own}
        facts["forward hooks"] = (*module._forward_pre_hooks, *module._forward_hooks)
        return facts


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _shown(facts: dict[str, Any], key: str) -> str:
    return repr(facts[key]) if key in facts else "no number, flag or string"
