"""The whole model in one process: a rank frees the stages of other ranks, and takes all weights back at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    import torch

    from lpcompile.runtime.engine.engine import Engine
    from lpcompile.runtime.engine.trainer import Trainer


class WholeModel:
    """What a rank would lose when it frees other stages: tied weights, and buffers outside the state dict."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        known: dict[int, str] = {}
        self.ties: dict[str, str] = {}  # a parameter's other names, each with its first
        for name, p in model.named_parameters(remove_duplicate=False):
            first = known.setdefault(id(p), name)
            if first != name:
                self.ties[name] = first
        saved = set(model.state_dict())
        self.buffers = {n: b.detach().clone() for n, b in model.named_buffers() if n not in saved}

    def state(self, engine: Trainer) -> dict[str, Tensor]:
        """The whole model's state on every rank; tied weights are one tensor. All ranks call it."""
        found = engine.state_dict()
        return {name: found[self.ties.get(name, name)] for name in found}

    def restore(self, engine: Trainer) -> None:
        """Give the model all weights again, on every rank. All ranks call it."""
        self.fill(self.state(engine), engine.device)

    def fill(self, state: dict[str, Tensor], device: torch.device) -> None:
        """Give the model the tensors of `state` that this rank has freed."""
        made = dict[str, nn.Parameter]()
        for name, old in list(self.model.named_parameters(remove_duplicate=False)):
            owner, _, field = name.rpartition(".")
            first = self.ties.get(name, name)
            if first not in made:
                given = state[first].to(device)
                made[first] = old if old.device.type != "meta" else nn.Parameter(given, old.requires_grad)
            self.model.get_submodule(owner)._parameters[field] = made[first]
        for name, buffer in list(self.model.named_buffers()):
            if buffer.device.type == "meta":
                owner, _, field = name.rpartition(".")
                found = state[name] if name in state else self.buffers[name]
                self.model.get_submodule(owner)._buffers[field] = found.to(device)


def output_everywhere(engine: Engine, flat: list[Tensor] | None) -> list[Tensor]:
    """The last rank's output tensors on all ranks. All ranks call it."""
    from lpcompile.runtime.comm import exchange

    if not engine.distributed:
        assert flat is not None
        return flat
    found: Any = exchange.from_rank(flat, engine.plan.rank_of(engine.plan.K - 1), engine.control)
    return [t.to(engine.device) for t in found]
