"""Attributes that a recording has turned into constants, so that a later change is noticed instead of ignored."""

from __future__ import annotations

from typing import Any

from torch import nn

from lpcompile.passes.graph.mutation import INTERNAL, inside
from lpcompile.passes.graph.tree import SCALARS

Facts = dict[str, dict[str, Any]]


class AttributeGuard:
    """Numbers, flags and hooks of the traced modules; leaves read theirs at every call and need no guard."""

    def __init__(self, model: nn.Module, leaves: set[str]) -> None:
        self.model = model
        self.modules = [(p, m) for p, m in model.named_modules() if not inside(p, leaves)]
        self.facts: dict[bool, Facts] = {}
        for mode in (True, False):
            self.accept(mode)
        for facts in self.facts[not model.training].values():  # recorded with every flag switched
            facts["training"] = not model.training

    def accept(self, mode: bool) -> None:
        """Take the current attributes as those of the graph of this mode."""
        self.facts[mode] = {path: _facts(module) for path, module in self.modules}

    def changed(self, mode: bool) -> str | None:
        """The first attribute that differs from the graph of this mode, in words; None if none does."""
        for path, module in self.modules:
            before, now = self.facts[mode][path], _facts(module)
            if before != now:
                keys = [k for k in {**before, **now} if before.get(k) != now.get(k)]
                where = f"{path}.{keys[0]}" if path else keys[0]
                return f"{where} is {now.get(keys[0])!r} now and was {before.get(keys[0])!r}"
        return None


def _facts(module: nn.Module) -> dict[str, Any]:
    facts: dict[str, Any] = {k: v for k, v in vars(module).items() if k not in INTERNAL and isinstance(v, SCALARS)}
    facts["forward hooks"] = (*module._forward_pre_hooks, *module._forward_hooks)
    return facts
