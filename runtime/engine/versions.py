"""Weight stashing: a micro-batch's backward uses the weights of its forward, however many steps lie between.

A version is a tuple of tensors with the storages of some parameters at one moment: of a rank's stage where a method
stashes weights, of an AuxNet as long as a graph of it is kept. Optimizers write into copies while a version is kept
(`apart`); during a forward or backward the parameters have the storages of their version (`put`). So every read of the
backward is right: parameters that autograd saved, views of them, tensors that a custom function saved, and parameters
that a recomputed forward looks up in its modules. Between instructions the parameters are the newest ones, for
optimizers, checkpoints and the user.

The newest version costs no memory; an older one is freed with its last micro-batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from lpcompile.core.schedule import Instruction
from lpcompile.errors import UsageError
from lpcompile.runtime.engine.worker import Worker

Version = tuple[Tensor, ...]


def stash(w: Worker, item: Instruction, slot: int) -> None:
    """Keep the current weights for this micro-batch."""
    w.values["W", w.rank, slot] = now(w.trained)


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
    wanted = list(w.updater.parameters) if kept_versions(w) else []
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
    kept = [*kept_versions(w), *(value[1] for (kind, _, _), value in w.values.items() if kind == "aux")]
    newest = {t.data_ptr() for ps in (w.trained, *w.aux_trained.values()) for t in now(ps)}
    return list({t.data_ptr(): t for version in kept for t in version if t.data_ptr() not in newest}.values())


def _set(parameters: Sequence[nn.Parameter], version: Version) -> None:
    for p, tensor in zip(parameters, version, strict=True):
        p.data = tensor
