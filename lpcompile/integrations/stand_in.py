"""A model's call told apart from the loss around it: user code runs with a stand-in in the model's place.

On every rank the stand-in stops at the call, which gives the model's arguments; on the last rank it answers the call
with the output of the stages, so that the rest of the user's code computes the loss from it.

>>> arguments_of(lambda model: compute_loss(model, batch), model)
{'input_ids': ..., 'labels': ...}
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from lpcompile.errors import UsageError


class Called(BaseException):
    """The model was called: not an Exception, which user code may catch."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


class StandIn:
    """Has all attributes of the model; a call is answered by `answer`."""

    def __init__(self, model: nn.Module, answer: Callable[[dict[str, Any]], Any]) -> None:
        self.__dict__.update(_model=model, _answer=answer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._answer(named(self._model, args, kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_model"], name)


def named(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], kind: type[nn.Module] | None = None
) -> dict[str, Any]:
    """The arguments of a call by name, without those that are None."""
    parameters = inspect.signature((kind or type(model)).forward).parameters
    names = list(parameters)[1:]  # without self, whatever its name
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: value for name, value in given.items() if value is not None}


def arguments_of(run: Callable[[Any], Any], model: nn.Module) -> dict[str, Any]:
    """The arguments with which user code calls the model."""

    def stop(arguments: dict[str, Any]) -> Any:
        raise Called(arguments)

    try:
        run(StandIn(model, stop))
    except Called as call:
        return call.arguments
    raise UsageError(NEVER)


NEVER = (
    "the loss is computed without a call of the model, so that there is nothing to split into stages; call the model "
    "that the loss function is given"
)


def called_once(run: Callable[[Any], Any], model: nn.Module) -> dict[str, Any]:
    """The arguments of the only call of the model; refuses code that calls it several times. The model runs once."""
    calls: list[dict[str, Any]] = []

    def answer(arguments: dict[str, Any]) -> Any:
        calls.append(arguments)
        return model(**arguments)

    run(StandIn(model, answer))
    if not calls:
        raise UsageError(NEVER)
    if len(calls) > 1:
        raise UsageError(
            f"the loss of a batch calls the model {len(calls)} times, and stages are trained on one call; call it "
            f"once, on both inputs put together along the batch dimension"
        )
    return calls[0]
