"""Weight stashing: a micro-batch's backward uses the weights of its forward, however many steps lie between.

A version is a tuple of tensors with the storages of some parameters at one moment: of a rank's stage where a method
stashes weights, of an AuxNet as long as a graph of it is kept. Optimizers write into copies while a version is kept
(`apart`); during a forward or backward the parameters have the storages of their version (`put`). So every read of the
backward is right: parameters that autograd saved, views of them, tensors that a custom function saved, and parameters
that a recomputed forward looks up in its modules. Between instructions the parameters are the newest ones, for
optimizers, checkpoints and the user.

The newest version costs no memory; an older one is freed with its last micro-batch.

A version may also be a prediction (`predict`): the weights that the micro-batch's gradient will meet, if the updates
that lie between go on as the last one did,

    ŵ(t+n) = w(t) + n (w(t) - w(t-1)).

With momentum, as in SGD or Adam, the last update is a running mean of gradients, and so the best guess of the next. It
is read off the weights, so the user's optimizer stays as it is, whichever it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from lpcompile.core.schedule import Instruction
from lpcompile.errors import UsageError
from lpcompile.runtime.engine.worker import Worker

Version = tuple[Tensor, ...]


def stash(w: Worker, item: Instruction, slot: int) -> None:
    """Keep the current weights for this micro-batch."""
    w.values["W", w.rank, slot] = now(w.trained)


def predict(w: Worker, item: Instruction, slot: int) -> None:
    """Keep the weights that are expected when this micro-batch's gradient is applied; the current ones where no update
    lies between (gradients are accumulated), or none was seen since the last rest."""
    every = w.settings.accumulate
    updates = sum((w.step + n + 1) % every == 0 for n in range(item.ahead))
    w.values["W", w.rank, slot] = w.expected.get(updates) or now(w.trained)


def look_ahead(w: Worker, before: Version) -> None:
    """After an update: what the next ones will make of the weights, if they are like it.

    Tied parameters are not predicted: on each rank that has them they are late by another number of updates.
    """
    tied = {id(p) for p in w.tied.values()}
    moved = {id(p): old for p, old in zip(w.updater.parameters, before, strict=True) if id(p) not in tied}
    for updates in range(1, w.ahead + 1):
        w.expected[updates] = tuple(
            torch.lerp(moved[id(p)], p.data, 1.0 + updates) if id(p) in moved else p.data for p in w.trained
        )


def now(parameters: Sequence[nn.Parameter]) -> Version:
    return tuple(p.data for p in parameters)


@contextlib.contextmanager
def put(parameters: Sequence[nn.Parameter], version: Version) -> Iterator[None]:
    """Inside, the parameters have this version's values."""
    newest = now(parameters)
    if all(a.data_ptr() == b.data_ptr() for a, b in zip(newest, version, strict=True)):
        yield
        return
    _set(parameters, version)
    try:
        yield
    finally:
        _set(parameters, newest)


@contextlib.contextmanager
def held(w: Worker, slot: int) -> Iterator[None]:
    """Inside, the stage's parameters have the micro-batch's stashed version, if there is one."""
    kept: Version | None = w.values.get(("W", w.rank, slot))
    if kept is None:
        yield
        return
    try:
        with put(w.trained, kept):
            yield
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise UsageError(
            f"stage {w.rank} changes a buffer in place that the backward of an earlier micro-batch still needs, and "
            f"{w.method.name!r} runs others in between; give the layer a new tensor instead (buffer = buffer + 1), or "
            f"use method='fr' or 'bp'"
        ) from error


@contextlib.contextmanager
def apart(w: Worker) -> Iterator[None]:
    """Inside, optimizers may change the parameters in place without changing kept versions.

    Autograd's version counters are preserved: they reveal overwritten saved tensors, and these are not overwritten.
    """
    wanted = list(w.updater.parameters) if w.ahead or kept_versions(w) else []
    wanted += [p for k in {k for kind, k, _ in w.values if kind == "aux"} for p in w.aux_trained[k]]
    parameters = tuple({id(p): p for p in wanted}.values())
    for p in parameters:
        p.data = p.data.clone()
    with _unsafe_preserve_version_counter(parameters) if parameters else contextlib.nullcontext():
        yield


def kept_versions(w: Worker) -> list[Version]:
    """Stashed versions of the stage."""
    return [value for (kind, _, _), value in w.values.items() if kind == "W"]


def older_tensors(w: Worker) -> list[Tensor]:
    """Tensors of kept versions that are not the current parameters, each once."""
    kept = [
        *kept_versions(w),
        *w.expected.values(),
        *(value[1] for (kind, _, _), value in w.values.items() if kind == "aux"),
    ]
    newest = {t.data_ptr() for ps in (w.trained, *w.aux_trained.values()) for t in now(ps)}
    return list({t.data_ptr(): t for version in kept for t in version if t.data_ptr() not in newest}.values())


def _set(parameters: Sequence[nn.Parameter], version: Version) -> None:
    for p, tensor in zip(parameters, version, strict=True):
        p.data = tensor
