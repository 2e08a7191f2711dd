"""Weight stashing: a micro-batch's backward finds the weights that its forward had, however many steps lie between.

A version is a tuple of tensors that hold the storages of some parameters at one moment: of a rank's stage where a
method stashes weights, of an AuxNet as long as a graph of it is kept. The optimizers write into copies while a version
is kept (`apart`), and for the time of a forward or backward the parameters are given back the storages of their version
(`put`). So whatever the backward reads is right: a parameter that autograd saved, a view of one, what a custom function
put aside, and what a recomputed forward looks up in its modules. Between instructions the parameters are the newest
ones, for the optimizers, for checkpoints and for the user.

A version that no step has left behind costs nothing; an older one goes with its last micro-batch.
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
    """The weights of now are the ones of this micro-batch."""
    w.values["W", w.rank, slot] = now(w.trained)


def now(parameters: Sequence[nn.Parameter]) -> Version:
    return tuple(p.data for p in parameters)


@contextlib.contextmanager
def put(parameters: Sequence[nn.Parameter], version: Version) -> Iterator[None]:
    """Inside, these parameters are as they were."""
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
    """The stage's parameters as they were when the micro-batch's weights were stashed; as they are, where not."""
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
    """Inside, optimizers may change the parameters in place: versions that are kept stay what they are.

    Autograd's count of changes is kept too. It is there to find a saved tensor whose values have been overwritten,
    and these are not.
    """
    wanted = list(w.updater.parameters) if kept_versions(w) else []
    wanted += [p for k in {k for kind, k, _ in w.values if kind == "aux"} for p in w.aux_trained[k]]
    parameters = tuple({id(p): p for p in wanted}.values())
    for p in parameters:
        p.data = p.data.clone()
    with _unsafe_preserve_version_counter(parameters) if parameters else contextlib.nullcontext():
        yield


def kept_versions(w: Worker) -> list[Version]:
    """Of the stage."""
    return [value for (kind, _, _), value in w.values.items() if kind == "W"]


def older_tensors(w: Worker) -> list[Tensor]:
    """The tensors of kept versions that are not the parameters of now, each once."""
    kept = [*kept_versions(w), *(value[1] for (kind, _, _), value in w.values.items() if kind == "aux")]
    newest = {t.data_ptr() for ps in (w.trained, *w.aux_trained.values()) for t in now(ps)}
    return list({t.data_ptr(): t for version in kept for t in version if t.data_ptr() not in newest}.values())


def _set(parameters: Sequence[nn.Parameter], version: Version) -> None:
    for p, tensor in zip(parameters, version, strict=True):
        p.data = tensor
