"""What a user's own code sees of a run: callbacks and loggers.

>>> program.fit(loss_fn, loader, 3, optimizer=sgd, on_evaluate=lambda figures: figures["test loss"] < 0.1)

A callback gets figures of all ranks by name, and ends training by returning True. It is called in the process that
called `fit`, so it may draw, or append to a list of a notebook; under torchrun in rank 0's process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lpcompile.errors import UsageError
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.launch import board, parent

if TYPE_CHECKING:
    from lpcompile.runtime.engine.trainer import Trainer

Figures = dict[str, Any]  # numbers by name; "step" as the log counts them, "epoch" from 1 on
Hook = Callable[[Figures], Any]  # returning True ends training


class Callback:
    """Derive from this, and define what you need. Returning True ends training after the current step or epoch.

    on_step: every `log_every` steps, with what the log has: loss, violations, times. on_evaluate: after an evaluation,
    with "test loss", "test accuracy" and the like. on_epoch: at the end of an epoch, with both.
    """

    def on_step(self, figures: Figures) -> Any:
        return None

    def on_epoch(self, figures: Figures) -> Any:
        return None

    def on_evaluate(self, figures: Figures) -> Any:
        return None


class Logger(Protocol):
    """Where figures go: `TensorBoard`, `WeightsAndBiases`, a log file, or anything with these two methods."""

    def log(self, figures: Figures, step: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Calls:
    """The callbacks and loggers of a run."""

    hooks: dict[str, tuple[Hook, ...]]
    loggers: tuple[Logger, ...] = ()

    def __call__(self, event: tuple[str, Figures]) -> bool:
        """Call everyone; whether one of them wants training to end."""
        kind, figures = event
        if kind in ("on_step", "on_evaluate"):
            for logger in self.loggers:
                logger.log(figures, figures["step"])
        return any([hook(dict(figures)) is True for hook in self.hooks.get(kind, ())])

    def close(self) -> None:
        for logger in self.loggers:
            logger.close()

    def __bool__(self) -> bool:
        return bool(self.loggers) or any(self.hooks.values())


def calls_of(callbacks: Sequence[Any] = (), loggers: Sequence[Logger] = (), **hooks: Hook | None) -> Calls:
    """Callbacks given as objects and as functions; `hooks` by the names of `Callback`'s methods."""
    for name, several in (("callbacks", callbacks), ("loggers", loggers)):
        if not isinstance(several, Sequence):
            raise UsageError(f"{name}={several!r} is not a list; give {name}=[...]")
    for hook in hooks.values():
        if hook is not None and not callable(hook):
            raise UsageError(f"{hook!r} cannot be called: give a function of a dict of figures")
    for logger in loggers:
        if not callable(getattr(logger, "log", None)) or not callable(getattr(logger, "close", None)):
            raise UsageError(
                f"the logger {logger!r} has no methods log(figures, step) and close(); see "
                f"lpcompile.runtime.loop.callbacks.Logger"
            )
    found: dict[str, tuple[Hook, ...]] = {}
    for name in ("on_step", "on_epoch", "on_evaluate"):
        methods = [getattr(each, name) for each in callbacks if hasattr(each, name)]
        changed = [m for m in methods if getattr(m, "__func__", m) is not getattr(Callback, name)]
        own = hooks.get(name)
        found[name] = (*changed, *([own] if own is not None else []))
    if callbacks and not any(found.values()):
        raise UsageError(f"none of the callbacks has a method {', '.join(found)}")
    return Calls(found, tuple(loggers))


class Announcer:
    """Tells the callbacks of a run what happens. All ranks call `tell` alike, and all learn whether to stop."""

    def __init__(self, trainer: Trainer, call: Callable[[tuple[str, Figures]], bool] | None, on: bool) -> None:
        self.trainer, self.call, self.on = trainer, call or parent.ask, on
        self.stop = False

    def tell(self, kind: str, figures: Figures, together: bool = True) -> None:
        """together: all ranks are here, and agree on whether to stop."""
        if not self.on:
            return
        wanted = False
        if self.trainer.main:
            with board.away(self.trainer.steps, f"callback {kind}", board.RESTS):
                wanted = bool(self.call((kind, figures)))
        if together and self.trainer.control is not None:
            wanted = bool(exchange.from_first(wanted, self.trainer.control))
        self.stop = self.stop or (wanted and together)
