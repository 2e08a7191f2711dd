"""Whether the samples of a batch influence each other in the model, as by BatchNorm: then small micro-batches matter.

Layers of torch are known by their type. For all else (statistics of a user's own, attention or routing over the batch)
the model runs twice on two samples from the same seed: if the second sample changes, the first one's output may not.
"""

from __future__ import annotations

import random
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.explain import has_meta
from lpcompile.passes.capture.signature import rebuilder
from lpcompile.passes.graph.batch import batch_size, cropped, resized
from lpcompile.passes.graph.tree import flatten
from lpcompile.passes.graph.untouched import untouched

SEED = 20
SMALL_IMAGE = 64  # pixels
SAME = 1e-3  # relative difference that rounding may make
NOTE = (
    "samples of a batch influence each other in this model, as by BatchNorm: where a batch is cut, only those of a "
    "micro-batch do, as with accumulated gradients; micro=1 keeps batches whole"
)

_known: WeakKeyDictionary[Captured, bool] = WeakKeyDictionary()


def has_batch_norm(captured: Captured) -> bool:
    return any(isinstance(m, _BatchNorm) for m in captured._lp.model.modules())


def interacts(captured: Captured, tensors: list[torch.Tensor]) -> bool:
    """By type, or by trial; False where the model cannot be run."""
    if captured not in _known:
        _known[captured] = has_batch_norm(captured) or _changes(captured, tensors)
    return _known[captured]


def _changes(captured: Captured, tensors: list[torch.Tensor]) -> bool:
    info = captured._lp
    inputs = info.small_inputs or tensors
    if has_meta(info.model) or not info.batch_free or not batch_size(inputs):
        return False
    inputs = resized(inputs, 2)
    outputs = next(n for n in captured._lp_graphs[True].nodes if n.op == "output").args[0]
    small = cropped(inputs, SMALL_IMAGE)  # most models take them, also where their graph is for one size
    first, again = _trial(captured, small) if small is not inputs else ([], [])
    if len(first) != len(outputs) or not all(bool(t.isfinite().all()) for t in first):
        first, again = _trial(captured, inputs)
    if not first:
        return False
    found = False
    for node, left, right in zip(outputs, first, again, strict=True):
        spec = node.meta.get("spec") if isinstance(node, torch.fx.Node) else None
        dim = next((d for d, multiple in enumerate(spec.batch) if multiple), None) if spec is not None else None
        if spec is None or dim is None or left.shape != right.shape:
            continue
        mine, same = (t.narrow(dim, 0, t.shape[dim] // 2).float() for t in (left, right))
        found |= bool((mine - same).abs().max() > SAME * mine.abs().max())
    return found


def _trial(captured: Captured, inputs: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs for two samples, and for the first beside another second; nothing if the model fails."""
    try:
        return _outputs(captured, inputs), _outputs(captured, [_other_second(t) for t in inputs])
    except Exception:  # whatever this model needs of its inputs, the gate will say
        return [], []


def _outputs(captured: Captured, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Of a forward in training mode, which leaves no trace."""
    model, flags = captured._lp.model, [(m, m.training) for m in captured._lp.model.modules()]
    try:
        with untouched(model, captured._lp.written), torch.no_grad():
            torch.manual_seed(SEED)
            random.seed(SEED)
            args, kwargs = rebuilder(captured._lp.signature)(inputs)
            return [t.detach().clone() for t in flatten(model.train()(*args, **kwargs))[0]]
    finally:
        for module, flag in flags:
            module.training = flag


def _other_second(tensor: torch.Tensor) -> torch.Tensor:
    """The inputs with another second sample: of numbers a changed one, else the first once more."""
    if tensor.dim() == 0 or len(tensor) != 2:
        return tensor
    second = tensor[1:] * 0.5 + 0.25 if tensor.is_floating_point() else tensor[:1]
    return torch.cat([tensor[:1], second.to(tensor.dtype)])
