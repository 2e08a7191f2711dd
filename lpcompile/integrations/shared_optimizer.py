"""A library's optimizer for the whole model, of which each rank steps its own part.

The library creates it, gives it to its schedulers and callbacks, and saves and loads it: that stays as it is. A rank's
optimizer is one of the same class with the same groups, for the rank's parameters. Before each step it takes over the
learning rate and all other numbers of the groups.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from lpcompile.errors import UsageError
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.engine.engine import Engine


class SharedOptimizer:
    """`whole` is the library's optimizer: it keeps its groups, and never steps."""

    def __init__(self, whole: torch.optim.Optimizer, model: nn.Module) -> None:
        self.whole, self.model = whole, model
        self.names = {id(p): name for name, p in model.named_parameters()}
        self.parts: list[tuple[torch.optim.Optimizer, list[int]]] = []
        unknown = [p for group in whole.param_groups for p in group["params"] if id(p) not in self.names]
        if unknown:
            raise UsageError(
                f"the optimizer has {len(unknown)} parameters that are not the model's; give them to the model, so "
                f"that the rank that computes their gradients steps them"
            )

    def part(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of one rank, or of an AuxNet (as the first group's)."""
        ids, known = {id(p) for p in parameters}, set(self.names)
        groups, at = [], []
        for i, group in enumerate(self.whole.param_groups):
            mine = [p for p in group["params"] if id(p) in ids]
            mine += [p for p in parameters if id(p) not in known] if i == 0 else []
            if mine:
                groups.append({**{k: v for k, v in group.items() if k != "params"}, "params": mine})
                at.append(i)
        if not groups:
            raise UsageError("the optimizer has no parameter of one stage; use a smaller K, or train more layers")
        takes = inspect.signature(type(self.whole).__init__).parameters
        defaults = {k: v for k, v in self.whole.defaults.items() if k in takes}
        made = type(self.whole)(groups, **defaults)
        self.parts.append((made, at))
        return made

    def release(self) -> None:
        """Refer to the model's parameters as they are now: those of other ranks are on the meta device."""
        now = dict(self.model.named_parameters(remove_duplicate=False))
        for group in self.whole.param_groups:
            group["params"] = [now[self.names[id(p)]] for p in group["params"]]
        self.names = {id(p): name for name, p in self.model.named_parameters()}

    def follow(self) -> None:
        """Take over learning rates and the like."""
        for made, at in self.parts:
            for group, i in zip(made.param_groups, at, strict=True):
                group.update({k: v for k, v in self.whole.param_groups[i].items() if k != "params"})

    def gather(self, engine: Engine) -> None:
        """Put the state of all ranks into the whole optimizer, for it to be saved. All ranks call it."""
        engine.flush()
        mine: dict[str, Any] = {}
        for made, _ in self.parts:
            for p, slots in made.state.items():
                if id(p) in self.names:
                    mine |= {f"{self.names[id(p)]}/{slot}": value for slot, value in slots.items()}
        everyone = exchange.gathered(mine, engine.control) if engine.distributed else [mine]
        now = dict(self.model.named_parameters(remove_duplicate=False))
        for found in everyone:
            for full, value in found.items():
                name, _, slot = full.rpartition("/")
                self.whole.state[now[name]][slot] = value

    def scatter(self) -> None:
        """Give the state that was loaded into the whole optimizer to the ranks' own, and forget it here."""
        for made, _ in self.parts:
            for group in made.param_groups:
                for p in group["params"]:
                    if p in self.whole.state:
                        slots = self.whole.state[p]
                        made.state[p] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in slots.items()}
        self.forget()

    def forget(self) -> None:
        self.whole.state.clear()
