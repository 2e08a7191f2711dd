"""A moving average of the weights, kept by each rank for its own stages, evaluated and saved beside the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

AVERAGE = "ema "  # begins the names of its figures

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine


class Averaged(Protocol):
    """What timm's ModelEmaV3 and torch's AveragedModel have in common."""

    module: nn.Module


class Average:
    """make: from a stage to its average, which starts as a copy; update: given the average and the stage, a step."""

    def __init__(
        self, engine: Engine, make: Callable[[nn.Module], Averaged], update: Callable[[Any, nn.Module], Any]
    ) -> None:
        self.stages = [w.stage.module for w in engine.workers]
        self.averages = [make(stage) for stage in self.stages]
        self._update = update

    def update(self) -> None:
        """After a step of the optimizers."""
        with torch.no_grad():
            for average, stage in zip(self.averages, self.stages, strict=True):
                self._update(average, stage)

    def state(self) -> dict[str, Tensor]:
        """By the model's own names, of the stages of this process."""
        states = [average.module.state_dict() for average in self.averages]
        return {name: t for state in states for name, t in state.items() if isinstance(t, Tensor)}

    def load(self, given: dict[str, Tensor]) -> None:
        """From a checkpoint; one of a run without an average starts from its weights."""
        for average, stage in zip(self.averages, self.stages, strict=True):
            now = stage.state_dict()
            average.module.load_state_dict({name: given.get(name, t) for name, t in now.items()}, strict=True)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the stages have the averaged weights."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def _exchange(self) -> None:
        with torch.no_grad():
            for average, stage in zip(self.averages, self.stages, strict=True):
                theirs = [*average.module.parameters(), *average.module.buffers()]  # tied ones once
                for here, there in zip([*stage.parameters(), *stage.buffers()], theirs, strict=True):
                    kept = here.clone()
                    here.copy_(there)
                    there.copy_(kept)
