"""The model's output, in its own structure, for the user's loss: put together from what the last stage gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lpcompile.core.compiled import CompiledProgram, output_tree
from lpcompile.core.stage_io import StageIO
from lpcompile.errors import InputError, UsageError

MADE_EARLIER = (
    "which is made before the last stage and stays there; keep its layers in the last stage with "
    "pins={'together': ...}, or leave it out of the loss"
)


class Elsewhere:
    """Placeholder for a model output of an earlier stage: a loss may ignore it, but not use it."""

    def __init__(self, position: int, why: str = MADE_EARLIER) -> None:
        self.__dict__.update(position=position, why=why)

    def __getattr__(self, name: str) -> Any:
        raise UsageError(f"the loss uses output {self.position} of the model, {self.why}")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        next(a for a in (*args, *(kwargs or {}).values()) if isinstance(a, Elsewhere)).used  # noqa: B018


def structured(
    program: CompiledProgram, io: StageIO, found: Sequence[Any], training: bool, why: str = MADE_EARLIER
) -> Any:
    """The model's output from the last stage's results. why: the reason given when a loss uses a missing output."""
    tree = output_tree(program, training)
    flat: list[Any] = [Elsewhere(i, why) for i in range(tree.count)]
    for position, value in zip(io.outputs, found, strict=True):
        flat[position] = value
    return tree.unflatten(flat)


def loss_of(
    program: CompiledProgram, io: StageIO, loss_fn: Callable[[Any, Any], Tensor]
) -> Callable[[Sequence[Any], Any], Tensor]:
    """The user's loss on what the last stage gives."""
    return lambda found, target: one_number(loss_fn(structured(program, io, found, True), target), loss_fn)


def one_number(loss: Any, loss_fn: Callable[[Any, Any], Any]) -> Tensor:
    """A loss that training can start from; else an InputError that says what the function gave."""
    if isinstance(loss, Tensor) and loss.numel() == 1:
        return loss
    what = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
    name = getattr(loss_fn, "__qualname__", type(loss_fn).__name__)
    raise InputError(f"the loss {name} gave {what}; let it return a tensor with one number, as a mean over the batch")
