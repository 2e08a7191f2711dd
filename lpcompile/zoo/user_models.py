"""Modules as users write them: no compiler was tuned on these."""

from __future__ import annotations

from torch import nn

from lpcompile.zoo import user_forms, user_layers, user_state
from lpcompile.zoo.entry import InputMaker, ZooEntry
from lpcompile.zoo.strangers import drawn


def _entry(model: type[nn.Module], inputs: InputMaker) -> ZooEntry:
    return ZooEntry(f"user:{model.__name__}", "user", lambda: (model(), inputs))


def entries() -> list[ZooEntry]:
    return [_entry(*row) for row in (*user_forms.MODELS, *user_state.MODELS, *user_layers.MODELS, *drawn.MODELS)]
