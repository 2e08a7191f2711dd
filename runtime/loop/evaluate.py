"""Evaluation through the serial model (or through the AuxNets), with BatchNorm recalibrated on the side.

Stage k gathers its running statistics on λ_k, but the serial model feeds it X_k: both figures are reported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lpcompile.core.stage_io import StageIO, batch_of, io_of, own_io, use_mode
from lpcompile.errors import InputError, UsageError
from lpcompile.runtime.comm import handshake
from lpcompile.runtime.comm.fingerprint import NOTHING_KNOWN, Headers, of_batch
from lpcompile.runtime.comm.transport import Distributed
from lpcompile.runtime.engine.batches.batch import to_device
from lpcompile.runtime.engine.batches.forms import own_loss, parts_of, without_loss
from lpcompile.runtime.engine.batches.outputs import structured
from lpcompile.runtime.engine.batches.shares import SUM, items
from lpcompile.runtime.engine.worker import Net
from lpcompile.runtime.health.verdict import chance_of, count_classes

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

RECALIBRATION_BATCHES = 20  # of training data, for BatchNorm statistics
EVALUATION_TAG = 100  # apart from the tags of training
Metric = Callable[[Any, Any], dict[str, Any]]  # of one batch
Metrics = Metric | dict[str, Callable[[Any, Any], Any]]  # or of the whole data set, by name
Chain = list[tuple[int, Net]]  # ranks and the parts that they run, in order


def evaluate(
    trainer: Engine,
    loader: Iterable[Any],
    *,
    recalibrate: Iterable[Any] | None = None,
    batches: int = RECALIBRATION_BATCHES,
    keep: bool = False,
    aux: bool = False,
    metrics: Metrics | None = None,
) -> dict[str, float]:
    """Means over the samples of `loader`, the same on all ranks.

    recalibrate: a loader of training data from which BatchNorm statistics are taken anew (`batches` of it) for a second
    set of figures, "recalibrated ..."; training goes on with the old ones, unless the new ones are to `keep`.
    aux: also the path through the AuxNets, as "aux ...".
    metrics: by name, functions from all outputs and all targets of `loader` to a number ({"f1": f1}); or one function
        from output and target of a batch to numbers, whose means are taken; by default loss, and accuracy for classes.
        Where the model makes its own loss, the output is what it gives besides (logits), the target its labels.
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


def check_metrics(metrics: Any, test: Any) -> None:
    """Refuse metrics that could not be taken, before training."""
    functions = metrics.values() if isinstance(metrics, dict) else [] if metrics is None else [metrics]
    if not all(callable(f) for f in functions):
        raise UsageError(f'metrics={metrics!r} are not functions by name: metrics={{"f1": f1}}')
    if metrics and test is None:
        raise UsageError("metrics are of the test data, and there are none: give test=LOADER")


def serial(trainer: Engine, training: bool) -> Chain:
    nets = [Net(stage, io_of(stage, training)) for stage in trainer.program.stages]
    return [(trainer.plan.rank_of(s), net) for s, net in enumerate(nets)]


def through_auxnets(trainer: Engine, training: bool) -> Chain:
    hosts = trainer.hosts()
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


def run_chain(trainer: Engine, chain: Chain, batch: Any, at: int, random: bool = False) -> list[Any] | None:
    """The output of the chain's last part, on its rank (or in this process); None elsewhere.

    batch: a loader's; at: how many came before it. All ranks must have the same batch, which they
    compare. random: each part draws from its rank's own stream, for forwards in training mode.
    """
    x, y, _ = parts_of(trainer.input_names, trainer.loss_fn, batch)
    inputs = to_device(trainer.program.flat_inputs(x), trainer.device)
    specs = tuple(trainer.program.input_specs)
    size = batch_of(specs, [tuple(t.shape) for t in inputs]) or 0
    if inputs and size == 0:
        raise InputError(f"batch {at} to evaluate has no samples; does the loader's sampler or filter leave any?")
    lams: Sequence[Tensor] = ()
    here = trainer.rank if isinstance(trainer.transport, Distributed) else None
    known = of_batch(trainer.first_rank + trainer.rank, size, None, y, None) if here is not None else ()
    for i, (rank, net) in enumerate(chain):
        if here is not None and rank != here:
            continue
        before = chain[i - 1][0] if i else rank
        if here is not None and before != rank:
            known = _headers(trainer).checked(_headers(trainer).receive(before), at, known)
            lams = [torch.empty(s.at(size), dtype=s.dtype, device=trainer.device) for s in net.io.lams]
            for t in lams:
                dist.recv(t, trainer.first_rank + before, tag=EVALUATION_TAG)
        with trainer.workers[0 if here is not None else rank].own_random() if random else contextlib.nullcontext():
            found = net(lams, inputs)
        lams = [t.to(s.dtype) for t, s in zip(found, net.io.boundary, strict=False)]
        after = chain[i + 1][0] if i + 1 < len(chain) else rank
        if here is not None and after != rank:
            _headers(trainer).start(after, at, known)[0].wait()
            for t in lams:
                dist.send(t.contiguous(), trainer.first_rank + after, tag=EVALUATION_TAG)
    if here is not None and chain[-1][0] != here:
        return None
    return list(found)


def end_chain(trainer: Engine, chain: Chain, batches: int) -> None:
    """All ranks have had as many batches: else the ranks whose loader is longer would wait for ever."""
    if not isinstance(trainer.transport, Distributed):
        return
    for i, (rank, _) in enumerate(chain):
        if rank == trainer.rank:
            before, after = chain[max(i - 1, 0)][0], chain[min(i + 1, len(chain) - 1)][0]
            if before != rank:
                _headers(trainer).checked(_headers(trainer).receive(before), -batches - 1, NOTHING_KNOWN)
            if after != rank:
                _headers(trainer).start(after, -batches - 1)[0].wait()


def _headers(trainer: Engine) -> Headers:
    assert isinstance(trainer.transport, Distributed)
    return trainer.transport.headers


def _means(trainer: Engine, chain: Chain, loader: Iterable[Any], metrics: Metrics | None) -> dict[str, float]:
    totals: dict[str, float] = {}
    count, labels_seen, at, classes = 0, 0, 0, dict[int, int]()
    whole = metrics if isinstance(metrics, dict) else {}
    by_batch = accuracy if metrics is None or isinstance(metrics, dict) else metrics
    kept: list[tuple[Any, Any]] = []
    for at, batch in enumerate(loader, start=1):
        with trainer.workers[0].autocast():
            flat = run_chain(trainer, chain, batch, at)
        if flat is None:
            continue
        output = structured(trainer.program, chain[-1][1].io, flat, False)
        shown, target, size, labels = _outcome(trainer, output, batch)
        figures = by_batch(shown, target)
        if not isinstance(figures, Mapping):
            raise InputError(
                f"metrics as one function gives numbers of a batch by name, and it gave {_shape(figures)}; name it, to "
                f'take it of all outputs and targets: metrics={{"f1": f1}}'
            )
        values = {"loss": float(trainer.loss_fn(output, target)) if labels else 0.0, **figures}
        for name, value in values.items():
            totals[name] = totals.get(name, 0.0) + float(value) * (labels if name == "loss" else size)
        count, labels_seen = count + size, labels_seen + labels
        if whole:
            kept.append(pytree.tree_map(lambda t: t.detach().cpu() if isinstance(t, Tensor) else t, (shown, target)))
        if "accuracy" in values and isinstance(target, Tensor) and not target.is_floating_point():
            count_classes(classes, target)
    end_chain(trainer, chain, at)
    if not at:
        raise InputError("the loader to evaluate gives no batch; does the data set have samples?")
    trainer.chance = chance_of(classes) or trainer.chance
    found = {name: value / max(labels_seen if name == "loss" else count, 1) for name, value in totals.items()}
    if kept:
        found |= over_all(whole, kept)
    return handshake.merge(found, trainer.transport.control) if isinstance(trainer.transport, Distributed) else found


def _outcome(trainer: Engine, output: Any, batch: Any) -> tuple[Any, Any, int, int]:
    """What metrics take, the target, the number of samples, and the number of items that the loss is a mean over."""
    x, y, _ = parts_of(trainer.input_names, trainer.loss_fn, batch)
    inputs = trainer.program.flat_inputs(x)
    size = batch_of(tuple(trainer.program.input_specs), [tuple(t.shape) for t in inputs]) or 1
    own = trainer.loss_fn is own_loss
    target = to_device(inputs[trainer.labels] if own and trainer.labels is not None else y, trainer.device)
    labels = target if isinstance(target, Tensor) and not target.is_floating_point() else None
    reduction = trainer.reduction_now
    count = 1 if reduction == SUM else items(reduction, labels, size)
    return without_loss(output) if own else output, target, size, count


def over_all(metrics: dict[str, Callable[[Any, Any], Any]], kept: list[tuple[Any, Any]]) -> dict[str, float]:
    """Metrics of all batches together, which are put together along their first dimension."""

    def together(*parts: Any) -> Any:
        return torch.cat(parts) if isinstance(parts[0], Tensor) and parts[0].dim() else list(parts)

    try:
        output, target = pytree.tree_map(together, *kept)
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"metrics are functions of all outputs and targets of the data set, and those of its batches cannot be put "
            f"together ({error}); pad them to one size, or pass metrics as one function of a batch's output and target"
        ) from None
    found: dict[str, float] = {}
    for name, function in metrics.items():
        try:
            found[name] = float(function(output, target))
        except Exception as error:
            raise InputError(
                f"metrics[{name!r}] raised {type(error).__name__}: {error}; it is given all outputs ({_shape(output)}) "
                f"and all targets ({_shape(target)}) of the data set; with the model's own loss, the output is what "
                f"the model gives besides it"
            ) from error
    return found


def _shape(given: Any) -> str:
    if isinstance(given, Tensor):
        return f"a tensor of shape {list(given.shape)}"
    return f"a dict of {', '.join(map(str, given))}" if isinstance(given, dict) else f"a {type(given).__name__}"


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
            chain, at = serial(trainer, True), 0
            for at, batch in enumerate(islice(loader, batches), start=1):
                run_chain(trainer, chain, batch, at, random=True)
            end_chain(trainer, chain, at)
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
