"""The work of every contender of a bench: the same model, samples, targets, loss and optimizer.

Batches are made once and stay in memory, so that loading is no part of a step; or they are those of a data set, where
contenders train to an accuracy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lpcompile import sources
from lpcompile.errors import UsageError
from lpcompile.sources import Source
from lpcompile.training.build import make_loaders
from lpcompile.training.job import Job
from lpcompile.training.optimizers import OptimizerFactory, optimizer_factory

DISTINCT_BATCHES = 4  # trained on in turn
LR = 1e-3  # the speed of a step does not depend on it, unless numbers overflow


@dataclass(frozen=True)
class WorkSpec:
    """The work as plain data, given to every process. `cores` are those that the bench may use.

    channels_last, compile: the same for all contenders. transfer: "bf16" for messages of our ranks and of
    DDP. aux_dtype: "bf16" for our AuxNets; init: how they start, as in `train`; it determines their default budget.
    """

    model: str
    K: int
    batch: int
    input: str | None = None
    optimizer: str = "sgd"
    seed: int = 0
    device: str = "cpu"
    cores: tuple[int, ...] = ()
    channels_last: bool = False
    compile: bool = False
    transfer: str | None = None
    aux_dtype: str | None = None
    init: str | None = None
    data: str | None = None
    lr: float = LR


@dataclass(frozen=True)
class Work:
    """The work as objects: a model, its data and its optimizer. Batches are (inputs, target, sample numbers).

    train, test: loaders of a data set, where there is one; `batches` has only its first batch then."""

    model: nn.Module
    batches: list[tuple[Any, Any, Tensor]]
    optimizer: OptimizerFactory
    train: Any = None
    test: Any = None

    def forever(self) -> Iterator[tuple[Any, Any, Tensor]]:
        if self.train is None:
            while True:
                yield from self.batches
        for epoch in itertools.count():
            self.train.sampler.set_epoch(epoch)
            yield from self.train


def work(spec: WorkSpec) -> Work:
    """The same on every rank: all that is random comes from the seed."""
    torch.manual_seed(spec.seed)
    source = sources.load(
        spec.model, batch=spec.batch, input_shape=spec.input, seed=spec.seed, channels_last=spec.channels_last
    )
    if source.example_args and source.example_kwargs:
        raise UsageError(f"{spec.model} takes positional and keyword inputs; bench knows models with one kind of them")
    if spec.data is not None:
        return _of_data(spec, source)
    first = source.example_kwargs or source.example_args
    first = first[0] if isinstance(first, tuple) and len(first) == 1 else first
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        like = logits(call(source.model.eval(), first))
    source.model.train()
    g = torch.Generator().manual_seed(spec.seed)
    batches = []
    for i in range(DISTINCT_BATCHES):
        x = first if i == 0 else pytree.tree_map(lambda t: _other(t, g), first)
        index = torch.arange(i * spec.batch, (i + 1) * spec.batch)
        batches.append(pytree.tree_map(lambda t: t.to(spec.device), (x, _target(like, g), index)))
    return Work(source.model.to(spec.device), batches, optimizer_factory(spec.optimizer, spec.lr))


def _of_data(spec: WorkSpec, source: Source) -> Work:
    """The same, on a data set: shuffled and augmented alike for all."""
    assert spec.data is not None
    job = Job(spec.model, spec.data, K=spec.K, batch=spec.batch, seed=spec.seed, input=spec.input)
    train, test, classes = make_loaders(source, job)
    x, y, index = next(iter(train))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        told = logits(call(source.model.eval(), x[:2] if isinstance(x, Tensor) else x)).shape[-1]
    source.model.train()
    if told < classes:
        raise UsageError(f"{spec.model} tells {told} classes apart and {spec.data} has {classes}; take another model")
    if test is None:
        raise UsageError(f"{spec.data} has no test samples: an accuracy is that on a folder `test` or `val`")
    return Work(source.model, [(x, y, index)], optimizer_factory(spec.optimizer, spec.lr), train, test)


def _other(tensor: Any, g: torch.Generator) -> Any:
    """Another batch like this one: its samples in another order, floats with some noise."""
    if not isinstance(tensor, Tensor) or not tensor.dim():
        return tensor
    shuffled = tensor[torch.randperm(len(tensor), generator=g)]
    if not tensor.is_floating_point():
        return shuffled
    return shuffled + (0.1 * torch.randn(tensor.shape, generator=g)).to(tensor.dtype)


def _target(like: Tensor, g: torch.Generator) -> Tensor:
    """Classes for the last dimension of (batch, ..., classes), of which there are two or more; else numbers."""
    if like.dim() in (2, 3) and like.shape[-1] > 1:
        return torch.randint(0, like.shape[-1], like.shape[:-1], generator=g)
    return torch.randn(like.shape, generator=g).to(like.dtype)


def logits(found: Any) -> Tensor:
    """The tensor for the loss: the output itself, its `logits`, or its first floating-point tensor."""
    if isinstance(found, Tensor):
        return found
    named = found.get("logits") if hasattr(found, "get") else None
    if isinstance(named, Tensor):
        return named
    floats = [t for t in pytree.tree_leaves(found) if isinstance(t, Tensor) and t.is_floating_point()]
    if not floats:
        raise UsageError("the model gives no tensor of numbers that a loss could be taken of")
    return floats[0]


def loss(found: Any, target: Tensor) -> Tensor:
    """Cross entropy where the target is classes, else the mean square of the difference."""
    given = logits(found)
    if target.is_floating_point():
        return F.mse_loss(given, target)
    return F.cross_entropy(given.flatten(0, -2), target.flatten())


def call(model: nn.Module, x: Any) -> Any:
    """x: a tensor, a tuple of arguments, or a dict of them."""
    if isinstance(x, dict):
        return model(**x)
    return model(*x) if isinstance(x, tuple) else model(x)


def slice_of(value: Any, rank: int, world: int) -> Any:
    """A rank's part of a batch, for data parallelism."""

    def cut(t: Any) -> Any:
        return t.chunk(world)[rank] if isinstance(t, Tensor) and t.dim() else t

    return pytree.tree_map(cut, value)
