"""Evaluation through the serial model (or through the AuxNets), with BatchNorm recalibrated on the side.

Stage k gathers its running statistics on λ_k, but the serial model feeds it X_k: both figures are reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lpcompile.core.stage_io import StageIO, batch_of, io_of, own_io, use_mode
from lpcompile.runtime.comm import handshake
from lpcompile.runtime.comm.transport import Distributed
from lpcompile.runtime.engine.batch import to_device
from lpcompile.runtime.engine.outputs import structured
from lpcompile.runtime.engine.worker import Net

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

RECALIBRATION_BATCHES = 20  # of training data, for BatchNorm statistics
EVALUATION_TAG = 100  # apart from the tags of training
Metric = Callable[[Any, Any], dict[str, Any]]
Chain = list[tuple[int, Net]]  # ranks and the parts that they run, in order


def evaluate(
    trainer: Engine,
    loader: Iterable[Any],
    *,
    recalibrate: Iterable[Any] | None = None,
    batches: int = RECALIBRATION_BATCHES,
    keep: bool = False,
    aux: bool = False,
    metrics: Metric | None = None,
) -> dict[str, float]:
    """Means over the samples of `loader`, the same on all ranks.

    recalibrate: a loader of training data from which BatchNorm statistics are taken anew (`batches` of it) for a second
    set of figures, "recalibrated ..."; training goes on with the old ones, unless the new ones are to `keep`.
    aux: also the path through the AuxNets, as "aux ...".
    metrics: from output and target to numbers (means over the batch); by default loss, and accuracy for classes.
    """
    with evaluating(trainer), torch.no_grad():
        found = _means(trainer, serial(trainer, False), loader, metrics)
        if aux and trainer.auxnets:
            through = _means(trainer, through_auxnets(trainer, False), loader, metrics)
            found |= {f"aux {name}": value for name, value in through.items()}
    if recalibrate is not None and has_statistics(trainer):
        with recalibrated(trainer, recalibrate, batches, keep), evaluating(trainer), torch.no_grad():
            again = _means(trainer, serial(trainer, False), loader, metrics)
            found |= {f"recalibrated {name}": value for name, value in again.items()}
    return found


def serial(trainer: Engine, training: bool) -> Chain:
    return [(r, Net(stage, io_of(stage, training))) for r, stage in enumerate(trainer.program.stages)]


def through_auxnets(trainer: Engine, training: bool) -> Chain:
    hosts = trainer._hosts()
    found: Chain = []
    for k, net in trainer.auxnets.items():
        stage = io_of(trainer.program.stages[k - 1], training)
        io = own_io(net.module, training) or StageIO(
            stage.lams if net.io.lams else (), net.io.inputs, stage.boundary, ()
        )
        if not io.lams:
            found.clear()  # it starts from the model's input: nothing before it is needed
        found.append((hosts[k], Net(net.module, io, dtype=net.dtype)))
    return [*found, serial(trainer, training)[-1]]


def run_chain(trainer: Engine, chain: Chain, x: Any, random: bool = False) -> list[Any] | None:
    """The output of the chain's last part, on its rank (or in this process); None elsewhere.

    random: each part draws from its rank's own stream, for forwards in training mode.
    """
    inputs = to_device(trainer.program.flat_inputs(x), trainer.device)
    specs = tuple(trainer.program.input_specs)
    size = batch_of(specs, [tuple(t.shape) for t in inputs]) or 0
    lams: Sequence[Tensor] = ()
    here = trainer.rank if isinstance(trainer.transport, Distributed) else None
    for i, (rank, net) in enumerate(chain):
        if here is not None and rank != here:
            continue
        before = chain[i - 1][0] if i else rank
        if here is not None and before != rank:
            lams = [torch.empty(s.at(size), dtype=s.dtype, device=trainer.device) for s in net.io.lams]
            for t in lams:
                dist.recv(t, trainer.first_rank + before, tag=EVALUATION_TAG)
        with trainer.workers[0 if here is not None else rank].own_random() if random else contextlib.nullcontext():
            found = net(lams, inputs)
        lams = [t.to(s.dtype) for t, s in zip(found, net.io.boundary, strict=False)]
        after = chain[i + 1][0] if i + 1 < len(chain) else rank
        if here is not None and after != rank:
            for t in lams:
                dist.send(t.contiguous(), trainer.first_rank + after, tag=EVALUATION_TAG)
    if here is not None and chain[-1][0] != here:
        return None
    return list(found)


def _means(trainer: Engine, chain: Chain, loader: Iterable[Any], metrics: Metric | None) -> dict[str, float]:
    totals: dict[str, float] = {}
    count = 0
    for batch in loader:
        x, y = batch[0], batch[1]
        with trainer.workers[0].autocast():
            flat = run_chain(trainer, chain, x)
        if flat is None:
            continue
        output = structured(trainer.program, chain[-1][1].io, flat, False)
        target = to_device(y, trainer.device)
        size = len(flat[0]) if flat[0].dim() else 1
        values = {"loss": float(trainer.loss_fn(output, target)), **(metrics or accuracy)(output, target)}
        for name, value in values.items():
            totals[name] = totals.get(name, 0.0) + float(value) * size
        count += size
    found = {name: value / max(count, 1) for name, value in totals.items()}
    return handshake.merge(found, trainer.transport.control) if isinstance(trainer.transport, Distributed) else found


def accuracy(output: Any, target: Any) -> dict[str, Any]:
    """The share of classes that are right, where output and target look like classification."""
    if not isinstance(output, Tensor) or not isinstance(target, Tensor) or target.is_floating_point():
        return {}
    if output.dim() != 2 or target.dim() != 1:
        return {}
    return {"accuracy": (output.argmax(1) == target).float().mean()}


@contextlib.contextmanager
def evaluating(trainer: Engine) -> Iterator[None]:
    """All modules in evaluation mode; afterwards each is in its own mode again."""
    roots: list[nn.Module] = [*trainer.program.stages, *(net.module for net in trainer.auxnets.values())]
    if isinstance(trainer.loss_fn, nn.Module):
        roots.append(trainer.loss_fn)
    flags = [(module, module.training) for root in roots for module in root.modules()]
    for root in roots:
        root.eval()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag
        for root in roots:
            use_mode(root, root.training)


@contextlib.contextmanager
def recalibrated(trainer: Engine, loader: Iterable[Any], batches: int, keep: bool = False) -> Iterator[None]:
    """BatchNorm statistics gathered anew on X, as cumulative means; put back afterwards, unless they are to `keep`."""
    norms = [m for w in trainer.workers for m in _norms(w.stage.module)]
    kept = [(m, {k: b.clone() for k, b in m.named_buffers(recurse=False)}, m.momentum) for m in norms]
    for m in norms:
        m.reset_running_stats()
        m.momentum = None
    try:
        streams = [w.random for w in trainer.workers]
        with torch.no_grad(), torch.random.fork_rng([trainer.device] if trainer.device.type == "cuda" else []):
            for batch in islice(loader, batches):
                run_chain(trainer, serial(trainer, True), batch[0], random=True)
        for w, stream in zip(trainer.workers, streams, strict=True):
            w.random = stream
        yield
    finally:
        for m, buffers, momentum in kept:
            m.momentum = momentum
            for name, buffer in buffers.items():
                if not keep or name == "num_batches_tracked":
                    m.get_buffer(name).copy_(buffer)


def has_statistics(trainer: Engine) -> bool:
    """Whether the model gathers statistics that differ between λ and X."""
    return bool(_norms(trainer.program.module))


def _norms(module: nn.Module) -> list[nn.modules.batchnorm._NormBase]:
    return [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats]
