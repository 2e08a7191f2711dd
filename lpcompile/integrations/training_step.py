"""A LightningModule's `training_step`, told apart into the model that it calls and the loss around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from lpcompile.errors import UsageError
from lpcompile.integrations.stand_in import Called, named

REMEDY = "let training_step call one module once, as self(x) or self.model(x), and compute the loss from what it gives"


def model_of(module: nn.Module, run: Callable[[], Any]) -> tuple[nn.Module, dict[str, Any]]:
    """The module that `training_step` calls, the LightningModule itself or one of its attributes, and its arguments."""
    calls: list[tuple[str, nn.Module, dict[str, Any]]] = []
    inside: list[str] = []

    def watched(name: str, part: nn.Module) -> Callable[..., Any]:
        kind, forward = type(part), part.forward

        def call(*args: Any, **kwargs: Any) -> Any:
            if not inside:
                calls.append((name, part, named(part, args, kwargs, kind)))
            inside.append(name)
            try:
                return forward(*args, **kwargs)
            finally:
                inside.pop()

        return call

    children = [(f"self.{n}", m) for n, m in module.named_children() if any(True for _ in m.parameters())]
    parts = [("self", module), *children]
    for name, part in parts:
        part.forward = watched(name, part)
    try:
        run()
    finally:
        for _, part in parts:
            del part.forward
    if len(calls) != 1:
        what = ", ".join(f"{name}(...)" for name, _, _ in calls) or "no module"
        raise UsageError(f"training_step calls {what}, so that its model and its loss cannot be told apart; {REMEDY}")
    _, part, call = calls[0]
    missing = {id(p) for p in module.parameters() if p.requires_grad} - {id(p) for p in part.parameters()}
    if missing:
        raise UsageError(f"training_step calls {calls[0][0]}, and {len(missing)} trainable parameters are outside of "
                         f"it; {REMEDY}")  # fmt: skip
    return part, call


def stop(call: dict[str, Any]) -> Any:
    raise Called(call)


def call_of(run: Callable[[], Any]) -> dict[str, Any]:
    try:
        run()
    except Called as call:
        return call.arguments
    raise UsageError(f"training_step did not call the model this time; {REMEDY}")


def loss_in(found: Any) -> Tensor:
    loss = found["loss"] if isinstance(found, dict) else found
    if not isinstance(loss, Tensor):
        raise UsageError(f"training_step gives {type(found).__name__} and no loss; return the loss, or a dict with it")
    return loss
