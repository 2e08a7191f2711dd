"""Weight stashing: a micro-batch's backward finds the weights that its forward had, however many steps lie between.

A version is a tuple of tensors that hold the storages of a rank's parameters at one moment. The optimizers write into
copies while a version is kept (`apart`), and for the time of a forward or backward the parameters are given back the
storages of their version (`held`). So whatever the backward reads is right: a parameter that autograd saved, a view of
one, what a custom function put aside, and what a recomputed forward looks up in its modules. Between instructions the
parameters are the newest ones, for the optimizers, for checkpoints and for the user.

A version that no step has left behind costs nothing; an older one goes with its last micro-batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from lpcompile.errors import UsageError
from lpcompile.runtime.worker import Worker
from lpcompile.schedule import Instruction

Version = tuple[Tensor, ...]


def stash(w: Worker, item: Instruction, slot: int) -> None:
    """The weights of now are the ones of this micro-batch."""
    w.values["W", w.rank, slot] = _now(w)


@contextlib.contextmanager
def held(w: Worker, slot: int) -> Iterator[None]:
    """The parameters as they were when the micro-batch's weights were stashed; as they are, where they were not."""
    kept: Version | None = w.values.get(("W", w.rank, slot))
    if kept is None:
        yield
        return
    now = _now(w)
    _put(w, kept)
    try:
        yield
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise UsageError(
            f"stage {w.rank} changes a buffer in place that the backward of an earlier micro-batch still needs, and "
            f"{w.method.name!r} runs others in between; give the layer a new tensor instead (buffer = buffer + 1), or "
            f"use method='fr' or 'bp'"
        ) from error
    finally:
        _put(w, now)


@contextlib.contextmanager
def apart(w: Worker) -> Iterator[None]:
    """Inside, optimizers may change the parameters in place: versions that are kept stay what they are.

    Autograd's count of changes is kept too. It is there to find a saved tensor whose values have been overwritten,
    and these are not.
    """
    if not kept_versions(w):
        yield
        return
    parameters = tuple(w.updater.parameters)
    for p in parameters:
        p.data = p.data.clone()
    with _unsafe_preserve_version_counter(parameters):
        yield


def kept_versions(w: Worker) -> list[Version]:
    return [value for (kind, _, _), value in w.values.items() if kind == "W"]


def older_tensors(w: Worker) -> list[Tensor]:
    """The tensors of kept versions that are not the parameters of now, each once."""
    now = {t.data_ptr() for t in _now(w)}
    return list({t.data_ptr(): t for kept in kept_versions(w) for t in kept if t.data_ptr() not in now}.values())


def _now(w: Worker) -> Version:
    return tuple(p.data for p in w.trained)


def _put(w: Worker, version: Sequence[Tensor]) -> None:
    for p, tensor in zip(w.trained, version, strict=True):
        p.data = tensor
