"""The training calls of a Program, `trainer` and `fit`, with every option and its default in the signature.

The options of training that both take are the fields of `Settings`; `Training` names their types for type checkers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, cast

import torch
from torch import Tensor, nn

from lpcompile.errors import options_checked
from lpcompile.runtime.engine.settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lpcompile.core.compiled import CompiledProgram
    from lpcompile.runtime.engine.trainer import Trainer
    from lpcompile.runtime.engine.update import Factory
    from lpcompile.runtime.loop.callbacks import Hook, Logger
    from lpcompile.runtime.loop.evaluate import Metrics
    from lpcompile.runtime.loop.record import Record
    from lpcompile.runtime.methods.recipe import Given
    from lpcompile.runtime.penalty.beta import Beta

    Loss = Callable[[Any, Any], Tensor]
    BetaGiven = Beta | float | str | dict[int, float]

P = ParamSpec("P")
R = TypeVar("R")


class Training(TypedDict, total=False):
    """The fields of `lpcompile.runtime.engine.settings.Settings`, for type checkers and editors."""

    micro: int | None
    lockstep: bool
    stash: str
    slack: int
    recursive: bool
    kappa: str
    psi: str
    beta: BetaGiven | None
    lam_weight: float
    noise: float
    distil: str
    lam_lr: float | None
    kappa_lr: float | None
    clip: float | None
    clip_scope: str | None
    reduction: str | None
    accumulate: int
    autocast: torch.dtype | None
    transfer: torch.dtype | None
    compile: bool
    checkpoint: bool | Sequence[int]
    warmup: int | None
    warmup_violation: float
    finish: int
    recouple: float
    collapse: str
    check_every: int
    reconstruct: float
    buffer: int
    buffer_policy: str
    total_steps: int | None


def with_training(function: Callable[P, R]) -> Callable[P, R]:
    """Show the fields of `Settings` and their defaults in the signature, in place of `**training`."""
    shown = inspect.signature(function)
    own = [p for p in shown.parameters.values() if p.kind is not p.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(f.name, kind, default=f.default, annotation=f.type) for f in fields(Settings)]
    function.__signature__ = shown.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    return function


class Trainable:
    """What a Program can be asked for once it is compiled: to be trained."""

    @options_checked
    @with_training
    def trainer(
        self,
        loss_fn: Loss | None = None,
        *,
        optimizer: Factory,
        aux_optimizer: Factory | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        method: Given | None = None,
        auxnets: Sequence[nn.Module] | None = None,
        kappanets: Sequence[nn.Module] | None = None,
        heads: Sequence[nn.Module] | None = None,
        device: torch.device | str | None = None,
        replicas: int = 1,
        trace: bool = False,
        **training: Unpack[Training],
    ) -> Trainer:
        """The loop body of a training script: `step`, `evaluate`, `switch`, `save`, `load`.

        In one process it runs all stages in turn; under torchrun this process is one of them. Without a loss_fn the
        model makes its own loss, from labels among its inputs. The options are:

        optimizer, aux_optimizer: functions from a list of parameters to an optimizer, for every stage and every AuxNet
            (by default the same). scheduler: from an optimizer to an LR scheduler, stepped once an optimizer step.
        method: a name or a recipe, the plan's by default. auxnets, kappanets, heads: networks of your own.
        device: by default the model's. replicas: data-parallel copies, under torchrun. trace: record instructions.
        All others are in `lpcompile.runtime.engine.settings.Settings`:

        """
        from lpcompile.runtime.engine.trainer import Trainer

        given = changed(locals(), "trainer")
        return Trainer(cast("CompiledProgram", self), loss_fn, **given)

    @options_checked
    @with_training
    def fit(
        self,
        loss_fn: Loss | None,
        loader: Iterable[Any],
        epochs: int = 1,
        *,
        test: Iterable[Any] | None = None,
        metrics: Metrics | None = None,
        optimizer: Factory,
        aux_optimizer: Factory | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        method: Given | None = None,
        replicas: int = 1,
        timeout: float = 60.0,
        save: str | None = None,
        save_every: int = 0,
        keep: int = 2,
        save_strict: bool = False,
        resume: bool = False,
        log: str | None = None,
        log_every: int = 10,
        tensorboard: str | None = None,
        trace: str | None = None,
        evaluate_every: int = 1,
        train_batches: int = 10,
        wandb: str | None = None,
        best: str | None = None,
        patience: int = 0,
        load_best: bool = False,
        on_step: Hook | None = None,
        on_epoch: Hook | None = None,
        on_evaluate: Hook | None = None,
        callbacks: Sequence[Any] = (),
        loggers: Sequence[Logger] = (),
        auxnets: Sequence[nn.Module] | None = None,
        kappanets: Sequence[nn.Module] | None = None,
        heads: Sequence[nn.Module] | None = None,
        device: torch.device | str | None = None,
        **training: Unpack[Training],
    ) -> Record:
        """Train on K processes of this machine, or as one rank under torchrun; the weights are in the model after it.

        loss_fn: from the model's output and a batch's target; None for the loss that the model returns, with labels
            among its inputs. loader, test: give (x, y), (x, y, index) or dicts
            (`lpcompile.runtime.engine.batches.forms`); `test` is evaluated every `evaluate_every` epochs. metrics: by
            name, functions from all outputs and all targets of `test` to a number; with the model's own loss, from what
            it gives besides (logits) and labels.
        optimizer, aux_optimizer: functions from a list of parameters to an optimizer, for every stage and every AuxNet
            (by default the same). scheduler: from an optimizer to an LR scheduler, stepped once an optimizer step.
        method: a name or a recipe, the plan's by default. replicas: data-parallel copies of the K stages.
        timeout: seconds after which a rank that does not move is taken for dead.
        on_step, on_epoch, on_evaluate: functions of a dict of figures; returning True ends training. callbacks:
            objects with such methods. loggers: with `log(figures, step)` and `close()`. They are called in this process
            (`lpcompile.runtime.loop.callbacks`).
        auxnets, kappanets, heads: networks of your own. device: by default the model's.

        Returns a `lpcompile.runtime.loop.record.Record`: accuracy, loss, history, timing.

        Options of the loop (`lpcompile.runtime.loop.options.LoopOptions`) and of training
        (`lpcompile.runtime.engine.settings.Settings`):

        """
        from lpcompile.compile import follow
        from lpcompile.runtime.loop.callbacks import calls_of
        from lpcompile.runtime.loop.fit import fit

        given = changed(locals(), "fit")
        hooks = {name: given.pop(name, None) for name in ("on_step", "on_epoch", "on_evaluate")}
        calls = calls_of(given.pop("callbacks", ()), given.pop("loggers", ()), **hooks)
        program = cast("CompiledProgram", self)
        return fit(program, loss_fn, loader, epochs, follow=follow, calls=calls, **given)


POSITIONAL = ("self", "loss_fn", "loader", "epochs")


def changed(given: dict[str, Any], name: str) -> dict[str, Any]:
    """The options among the local variables of the method `name` that are not at their defaults."""
    parameters, given = inspect.signature(getattr(Trainable, name)).parameters, {**given, **given["training"]}
    return {
        option: given[option]
        for option, parameter in parameters.items()
        if option not in POSITIONAL and option in given and given[option] is not parameter.default
    }


def _document() -> None:
    """Add what each option means, from the records that hold them."""
    from lpcompile.runtime.loop.options import LoopOptions

    for name, records in (("trainer", (Settings,)), ("fit", (LoopOptions, Settings))):
        texts = [inspect.getdoc(record) or "" for record in records]
        method = getattr(Trainable, name)
        method.__doc__ = "\n\n".join([inspect.getdoc(method) or "", *texts])


_document()
