"""The share of a micro-batch's loss in the loss of its batch: plain training's, also where labels are ignored.

A loss is a mean over samples ("samples"), over the labels that are not -100 ("labels"), over those of them that are
predicted from the position before ("next labels", language models), or a sum ("sum"). Micro-batches of as many samples
may have very different numbers of labels: the mean of their means is not the mean of the batch. For a model that makes
its own loss, the reduction is measured on the batch that it was compiled for.

>>> found_reduction(loss, inputs, specs, labels=1)        # loss: from the tensors of a call to a number
'labels'
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from lpcompile.core.stage_io import TensorSpec, batch_of
from lpcompile.errors import InputError, UsageError
from lpcompile.runtime.engine.batches.batch import MicroBatch, cut
from lpcompile.runtime.engine.batches.forms import IGNORED, LABELS, labels_at, own_loss
from lpcompile.runtime.engine.settings import REDUCTIONS

if TYPE_CHECKING:
    from lpcompile.core.compiled import CompiledProgram

SAMPLES, COUNTED, NEXT, SUM = REDUCTIONS
MEASURED_SAMPLES = 8  # of the example batch, with which a loss is measured
NEAR = 2e-3  # largest relative difference between a batch's loss and that of its parts, put together
NEAR_GRADIENT = 2e-2  # the same of their gradients
MOST_NUMBERS, MOST_WEIGHTS = 1_000_000, 8  # of a parameter, and parameters whose gradients are looked at


def items(reduction: str, labels: Tensor | None, size: int) -> int:
    """What a loss is a mean over: the number of samples, or of labels that count."""
    if reduction in (COUNTED, NEXT) and labels is not None:
        seen = labels[..., 1:] if reduction == NEXT and labels.dim() > 1 else labels
        return int((seen != IGNORED).sum())
    return size


def weighted(parts: list[MicroBatch], reduction: str, at: int | None) -> list[MicroBatch]:
    """The micro-batches with the weights of their losses. at: the position of the labels among the inputs."""
    if reduction == SUM:
        return [replace(part, weight=1.0, summed=len(parts)) for part in parts]
    if reduction == SAMPLES or len(parts) == 1:
        return parts
    found = [labels_of(part, at) for part in parts]
    if any(labels is None for labels in found):
        return parts  # this rank has no labels, and so no loss
    counts = [items(reduction, labels, part.size) for labels, part in zip(found, parts, strict=True)]
    if not sum(counts):
        raise InputError(f"no label of the batch of step {parts[0].step} counts: all are {IGNORED}; leave it out")
    return [replace(part, weight=n / sum(counts)) for part, n in zip(parts, counts, strict=True)]


class NoReduction(UsageError):
    """The loss of a batch does not follow from the losses of its parts. why: the fact, without a remedy."""

    def __init__(self, why: str) -> None:
        super().__init__(no_reduction(why))
        self.why = why


def no_reduction(why: str) -> str:
    return (
        f"{why}, so micro-batches would train another loss; pass micro=1, or reduction='samples' to train the mean of "
        f"the micro-batches' losses, as gradient accumulation does"
    )


def labels_of(part: MicroBatch, at: int | None) -> Tensor | None:
    """The labels of a micro-batch: an input of the model, the loss's target, or an entry of it."""
    return labels_among(part.inputs[at] if at is not None and part.inputs else part.target)


def labels_among(found: Any) -> Tensor | None:
    if isinstance(found, Mapping):
        found = next((v for name, v in found.items() if any(word in name.lower() for word in LABELS)), None)
    return found if isinstance(found, Tensor) and not found.is_floating_point() else None


def silent(found: Sequence[Any]) -> Tensor:
    """A loss of zero with the graph of the stage's outputs, where no label counts and the model's own is 0/0."""
    kept = [t for t in found if isinstance(t, Tensor) and t.requires_grad and t.dim()]
    if not kept:
        raise InputError("no label of a micro-batch counts, and the model gives nothing but its loss: use larger ones")
    return torch.stack([(t.float() * 0).sum() for t in kept]).sum()


def own_reduction(program: CompiledProgram) -> tuple[str | None, str]:
    """How the model's own loss reduces a batch, or None and why it does not follow from the losses of parts.

    Measured where the model has weights and its example batch is known.
    """
    at, example, specs = labels_at(program), program.example, tuple(program.input_specs)
    usual = SAMPLES if at is None else COUNTED
    tensors = [*program.module.parameters(), *(example or ())]
    if example is None or not program.plan.batch_free or any(t.device.type == "meta" for t in tensors):
        return usual, ""

    def loss(given: list[Tensor]) -> Tensor:
        return own_loss(_called(program, given))

    return reduction_of(program.module, loss, list(example), specs, at, last_weights(program.module), usual)


def reduction_of(
    module: nn.Module, loss: Callable[[list[Tensor]], Any], tensors: list[Tensor], specs: Sequence[TensorSpec],
    labels: int | None, weights: Sequence[Tensor], usual: str = SAMPLES,
) -> tuple[str | None, str]:  # fmt: skip
    """`found_reduction` with the module in evaluation, or None and why there is none; `usual` if the loss is random."""
    flags = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng():
            if float(loss(tensors)) != float(loss(tensors)):
                return usual, ""
            return found_reduction(loss, tensors, specs, labels, weights=weights), ""
    except NoReduction as error:
        return None, error.why
    finally:
        for m, flag in flags:
            m.training = flag


def _called(program: CompiledProgram, given: list[Tensor]) -> Any:
    device = next((p.device for p in program.module.parameters()), torch.device("cpu"))
    call = program.call_of([t.to(device) for t in given])
    return program.module(**call)


def found_reduction(
    loss: Callable[[list[Tensor]], Any],
    inputs: Sequence[Tensor],
    specs: Sequence[TensorSpec],
    labels: int | None,
    most: int = MEASURED_SAMPLES,
    weights: Sequence[Tensor] = (),
) -> str:
    """Compare the loss of at most this many samples with those of their two parts.

    Some labels are ignored where the loss can do that, so that it shows whether it counts them. weights: parameters of
    the model, whose gradients are compared as well, for the samples' losses are much alike while a model is fresh.
    """
    given = _some(list(inputs), specs, most, labels)
    tried = [given] if labels is None else [_with_ignored(given, labels), given]
    seen: dict[str, Difference] = {}
    for batch in tried:
        try:
            seen = _differences(loss, batch, specs, labels, weights)
        except (RuntimeError, IndexError, ValueError):  # a loss that takes no ignored label
            if batch is given:
                raise
            continue
        best = min(seen, key=lambda name: seen[name].much)
        if seen[best].much <= 1:
            return best
    value, gradient = seen[SAMPLES]
    what, error = ("it", value) if value > NEAR else ("its gradient", gradient)
    raise NoReduction(
        f"the loss of a batch is neither the mean nor the sum of the losses of its parts ({what} differs from the mean "
        f"over samples by {100 * error:.2g} %)"
    )


class Difference(NamedTuple):
    """The relative difference between a batch's loss and the losses of its parts together, and of their gradients."""

    value: float
    gradient: float

    @property
    def much(self) -> float:
        return max(self.value / NEAR, self.gradient / NEAR_GRADIENT)


def last_weights(model: nn.Module) -> list[Tensor]:
    """The last few parameters that are trained, through which all of a loss's gradient comes."""
    small = [p for p in model.parameters() if p.requires_grad and p.is_floating_point() and p.numel() <= MOST_NUMBERS]
    return list(small[-MOST_WEIGHTS:])


def _differences(
    loss: Callable[[list[Tensor]], Any],
    batch: list[Tensor],
    specs: Sequence[TensorSpec],
    at: int | None,
    weights: Sequence[Tensor],
) -> dict[str, Difference]:
    size = _size(batch, specs)
    first = size // 3 + 1
    parts = [[cut(t, s, a, b) for t, s in zip(batch, specs, strict=True)] for a, b in ((0, first), (first, size))]
    sizes = [first, size - first]
    whole, *of_parts = (_loss_and_gradient(loss, some, weights) for some in (batch, *parts))
    found = {}
    for name in REDUCTIONS if at is not None else (SAMPLES, SUM):
        counts = [items(name, part[at] if at is not None else None, n) for part, n in zip(parts, sizes, strict=True)]
        shares = [1.0, 1.0] if name == SUM else [n / max(1, sum(counts)) for n in counts]
        value, gradient = (_error(shares, [part[i] for part in of_parts], whole[i]) for i in (0, 1))
        found[name] = Difference(value, gradient if whole[1].isfinite().all() and whole[1].any() else 0.0)
    return found


def _loss_and_gradient(
    loss: Callable[[list[Tensor]], Any], batch: list[Tensor], weights: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    if not weights:
        return torch.tensor([float(loss(batch))], dtype=torch.float64), torch.zeros(0)
    with torch.enable_grad():
        value = loss(batch)
        found = torch.autograd.grad(value, list(weights), allow_unused=True) if value.requires_grad else ()
    gradient = [g.detach().double().flatten().cpu() for g in found if g is not None]
    return value.detach().double().reshape(1).cpu(), torch.cat(gradient) if gradient else torch.zeros(0)


def _error(shares: list[float], parts: list[Tensor], whole: Tensor) -> float:
    together = sum((w * part for w, part in zip(shares, parts, strict=True) if w), torch.zeros_like(whole))
    error = float((together - whole).norm()) / max(float(whole.norm()), 1e-12)
    return error if math.isfinite(error) else math.inf


def _size(batch: Sequence[Tensor], specs: Sequence[TensorSpec]) -> int:
    return batch_of(tuple(specs), [tuple(t.shape) for t in batch]) or 1


def _some(batch: list[Tensor], specs: Sequence[TensorSpec], most: int, labels: int | None) -> list[Tensor]:
    """A few samples of a batch, of different classes where labels say so; of a very small one, its samples repeated."""
    size = _size(batch, specs)
    times = -(-4 // size)
    if times > 1:
        batch = [_repeated(t, s, times) for t, s in zip(batch, specs, strict=True)]
        size *= times
    rows = list(range(min(size, most)))
    if labels is not None and batch[labels].dim() == 1 and len(batch[labels]) == size:
        classes = batch[labels].tolist()
        met: dict[Any, int] = {}
        nth = [met.update({c: met.get(c, 0) + 1}) or met[c] for c in classes]  # one of each class comes first
        rows = sorted(sorted(range(size), key=nth.__getitem__)[:most], key=classes.__getitem__)
    return [_rows(t, s, rows) for t, s in zip(batch, specs, strict=True)]


def _rows(tensor: Tensor, spec: TensorSpec, rows: list[int]) -> Tensor:
    dim = next((d for d, multiple in enumerate(spec.batch) if multiple), None)
    return tensor if dim is None else torch.cat([cut(tensor, spec, i, i + 1) for i in rows], dim)


def _repeated(tensor: Tensor, spec: TensorSpec, times: int) -> Tensor:
    dim = next((d for d, multiple in enumerate(spec.batch) if multiple), None)
    return tensor if dim is None else torch.cat([tensor] * times, dim)


def _with_ignored(batch: list[Tensor], at: int) -> list[Tensor]:
    """The batch with some labels ignored: not as many in its parts, and some first ones."""
    labels = batch[at].clone()
    if labels.dim() == 1:
        labels[0] = IGNORED
    else:
        flat = labels.view(len(labels), -1)
        for i, row in enumerate(flat):
            row[: (i % 3) * max(1, len(row) // 4)] = IGNORED
        flat[0, len(flat[0]) // 2 :] = IGNORED
    return [labels if i == at else t for i, t in enumerate(batch)]
