"""What a user's loss is a mean over, measured before the first step: micro-batches must train the loss of the batch.

`cross_entropy` is a mean over the labels that are not -100; a loss may also be a sum, or depend on the samples of a
batch together (class weights, pairs of samples): then no weights put the losses of micro-batches together. The last
stage runs on a few samples with random values at its boundary, and its outputs and the targets show which it is.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lpcompile.core.stage_io import TensorSpec, batch_of
from lpcompile.runtime.engine.batches.batch import cut
from lpcompile.runtime.engine.batches.forms import own_loss
from lpcompile.runtime.engine.batches.shares import SAMPLES, NoReduction, found_reduction, labels_among
from lpcompile.runtime.engine.cutting import keep_whole
from lpcompile.runtime.engine.worker import Worker, get_random, set_random

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

log = logging.getLogger("lpcompile")
LEAST, MOST = 8, 32  # samples that are looked at
FEWER = 3  # samples less in a second run, which shows the dimensions of outputs that follow the batch


def measure(engine: Engine, x: Any, y: Any, size: int | None) -> None:
    """Find `engine.reduction`, before the first step and on all ranks alike, unless the user has said it.

    Where the loss is neither a mean nor a sum, batches stay whole from here on, if the user has not asked for
    micro-batches; else UsageError.
    """
    engine.reduction = SAMPLES
    said = engine.settings.reduction or engine.loss_fn is own_loss
    cut = engine.plan.K > 1 and engine.plan.batch_free and not engine.target.replay_buffers
    if said or not cut or engine.settings.compile:  # compiled code is for one size
        return
    found: dict[str, Any] = {}
    for w in engine.workers:
        if w.last:
            inputs = engine.program.flat_inputs(x) if x is not None else []
            shapes = [tuple(t.shape) for t in inputs]
            count = batch_of(tuple(engine.program.input_specs), shapes) if inputs else size
            found = _measured(w, engine.program.input_specs, inputs, y, count)
    found = engine.gather(found)
    engine.reduction = found.get("reduction", SAMPLES)
    if why := found.get("neither", ""):
        keep_whole(engine, why)


def _measured(
    w: Worker, specs: Sequence[TensorSpec], inputs: Sequence[Tensor], target: Any, size: int | None
) -> dict[str, str]:
    """The reduction, or why there is none; nothing where the loss cannot be measured like this."""
    if not size:
        return {}
    random = get_random(w.device)
    try:
        with torch.no_grad(), w.statistics_kept(w.stage.module):
            return {"reduction": _compare(w, specs, inputs, target, size)}
    except NoReduction as error:
        return {"neither": error.why}
    except Exception as error:  # whatever is wrong, the first step will say it better
        log.debug("the loss was not measured: %s: %s", type(error).__name__, error)
        return {}
    finally:
        set_random(w.device, random)


def _compare(w: Worker, specs: Sequence[TensorSpec], inputs: Sequence[Tensor], target: Any, size: int) -> str:
    assert w.loss is not None
    loss = w.loss
    count = min(MOST, max(LEAST, size))
    rows = torch.arange(count, device=w.device) % size
    labels = labels_among(target)
    if labels is not None and labels.dim() == 1 and len(labels) == size:  # so that the parts have other classes
        rows = rows[labels.to(w.device)[rows].argsort(stable=True)]

    def outputs(count: int) -> tuple[Any, ...]:
        given = [_some(t.to(w.device), s, rows[:count]) for t, s in zip(inputs, specs, strict=bool(inputs))]
        return w.stage(tuple(_random(s, count, w.device) for s in w.specs[w.rank]), given)

    made, fewer = outputs(count), outputs(count - FEWER)
    found = [t.float() if isinstance(t, Tensor) and t.is_floating_point() and t.itemsize < 4 else t for t in made]
    leaves, tree = pytree.tree_flatten(target)
    aims = [t.to(w.device) if isinstance(t, Tensor) else t for t in leaves]
    aims = [t[rows] if isinstance(t, Tensor) and t.dim() and len(t) == size else t for t in aims]
    tensors = [*(t for t in found if isinstance(t, Tensor)), *(t for t in aims if isinstance(t, Tensor))]
    follow = [_followed(a, b, count) for a, b in zip(found, fewer, strict=True) if isinstance(a, Tensor)]
    follow += [TensorSpec.of(t).with_batch((int(len(t) == len(rows)), *[0] * (t.dim() - 1)) if t.dim() else ())
               for t in aims if isinstance(t, Tensor)]  # fmt: skip

    def again(given: Sequence[Tensor]) -> Tensor:
        values = iter(given)
        out, aim = ([next(values) if isinstance(v, Tensor) else v for v in part] for part in (found, aims))
        return loss(out, tree.unflatten(aim))

    first, second = float(again(tensors)), float(again(tensors))
    if first != second or not torch.isfinite(torch.tensor(first)):
        return SAMPLES  # it draws random numbers, or has no value here
    labels = labels_among(tree.unflatten(aims))
    at = next((i for i, t in enumerate(tensors) if t is labels), None)
    return found_reduction(again, tensors, follow, at, MOST)


def _some(tensor: Tensor, spec: TensorSpec, rows: Tensor) -> Tensor:
    """These samples of an input."""
    if not any(spec.batch):
        return tensor
    dim = next(d for d, multiple in enumerate(spec.batch) if multiple)
    return torch.cat([cut(tensor, spec, int(i), int(i) + 1) for i in rows], dim)


def _random(spec: TensorSpec, count: int, device: torch.device) -> Tensor:
    if not spec.dtype.is_floating_point:
        return torch.zeros(spec.at(count), dtype=spec.dtype, device=device)
    return torch.randn(spec.at(count), device=device).to(spec.dtype)


def _followed(more: Tensor, fewer: Tensor, count: int) -> TensorSpec:
    """The dimensions of an output that follow the batch, from two runs."""
    sizes = zip(more.shape, fewer.shape, strict=True)
    return TensorSpec.of(more).with_batch(tuple(a // count if a != b else 0 for a, b in sizes))
