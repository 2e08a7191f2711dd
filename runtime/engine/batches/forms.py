"""The forms of a batch: a tensor, a tuple, a dict or a `BatchEncoding`.

With a loss function a batch is (x, y) or (x, y, index); of a dict the model takes the entries of the names that it was
compiled with, and the loss the rest: the entry itself if there is one, else a dict. With the model's own loss the whole
batch is the model's: a dict by name, a tuple by position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lpcompile.core.compiled import CompiledProgram
from lpcompile.errors import InputError, UsageError

IGNORED = -100  # the label that losses leave out, as in torch.nn.functional.cross_entropy
LABELS = ("label", "target")  # parts of the names of inputs that are labels


class Parts(NamedTuple):
    """A batch taken apart."""

    x: Any
    y: Any = None
    numbers: Tensor | None = None  # of the samples in the data set


def parts_of(names: Sequence[str], loss_fn: Callable[..., Any] | None, batch: Any) -> Parts:
    """A loader's batch as what `Trainer.step` takes. names: the arguments that the model was compiled with."""
    if isinstance(batch, Mapping):
        return _of_mapping(names, loss_fn, batch)
    if loss_fn is None or loss_fn is own_loss:
        return Parts(tuple(batch) if isinstance(batch, (list, tuple)) else batch)
    if isinstance(batch, Tensor):
        return Parts(batch)
    if isinstance(batch, Sequence) and not isinstance(batch, str) and 1 <= len(batch) <= 3:
        x, *rest = batch
        if isinstance(x, Mapping):
            x = dict(x)
        return Parts(x, *rest)
    what = f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, (list, tuple)) else "")
    raise InputError(
        f"the loader gives {what}, and a batch for a loss function is (x, y), (x, y, index) or a dict; give several "
        f"inputs as ((x1, x2), y), or pass loss_fn=None if the model makes its own loss"
    )


def _of_mapping(names: Sequence[str], loss_fn: Callable[..., Any] | None, batch: Mapping[str, Any]) -> Parts:
    if not any(name in batch for name in names):
        raise InputError(
            f"the batch has {', '.join(map(str, batch))}, and the model was compiled for {', '.join(names)}; "
            f"compile it with such a batch (example_inputs=batch)"
        )
    x = {name: batch[name] for name in names if name in batch}
    rest = {name: value for name, value in batch.items() if name not in names}
    if loss_fn is None or loss_fn is own_loss or not rest:
        return Parts(x)
    return Parts(x, next(iter(rest.values())) if len(rest) == 1 else rest)


def input_names(program: CompiledProgram) -> tuple[str, ...]:
    """The arguments that the model was compiled with."""
    return tuple(program.call_of(list(range(len(program.input_specs)))))


def labels_at(program: CompiledProgram) -> int | None:
    """The position among the model's inputs of integer labels, by their name; None if there are none."""
    specs = program.input_specs
    for name, i in program.call_of(list(range(len(specs)))).items():
        labels = isinstance(i, int) and any(part in name.lower() for part in LABELS)
        if labels and specs[i].dtype == torch.int64 and any(specs[i].batch):
            return int(i)
    return None


def own_loss(output: Any, target: Any = None) -> Tensor:
    """The loss that a model returns: `.loss`, `["loss"]`, or of a tuple the first element that is a single number."""
    found = output
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif isinstance(output, (list, tuple)) and not hasattr(output, "loss"):
        found = next((v for v in output if isinstance(v, Tensor) and v.dim() == 0 and v.is_floating_point()), None)
    elif not isinstance(output, Tensor):
        found = getattr(output, "loss", None)
    if isinstance(found, Tensor) and found.numel() == 1 and found.is_floating_point():
        return found.reshape(())
    what = f"a {type(output).__name__}" + (f" of shape {list(output.shape)}" if isinstance(output, Tensor) else "")
    raise UsageError(
        f"loss_fn=None stands for the model's own loss, and the model gives {what} without one; compile it with labels "
        f"among its inputs (example_inputs=batch), or pass loss_fn"
    )


def without_loss(output: Any) -> Any:
    """What a model gives beside its loss: the value itself if there is one (logits), else a dict or a tuple."""
    if isinstance(output, Mapping):
        rest = {name: value for name, value in output.items() if name != "loss"}
        return next(iter(rest.values())) if len(rest) == 1 else rest
    if isinstance(output, (list, tuple)) and not hasattr(output, "_fields"):
        kept = [v for v in output if not (isinstance(v, Tensor) and v.dim() == 0)]
        return kept[0] if len(kept) == 1 else tuple(kept)
    return output
