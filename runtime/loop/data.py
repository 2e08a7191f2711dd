"""The data of a run on all ranks: the same loader, shuffled by rank 0's random state."""

from __future__ import annotations

import inspect
import os
import random
import time
import warnings
from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from lpcompile.errors import InputError
from lpcompile.runtime.comm import exchange, handshake
from lpcompile.runtime.comm.fingerprint import checksum
from lpcompile.runtime.launch import board

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine
    from lpcompile.runtime.loop.options import LoopOptions

EMPTY = "the loader gives no batch; does the data set have samples, and at least one batch of them with drop_last=True?"
NO_LENGTH = (
    "a loader without a length cannot be resumed: give a data set with len(), or let len(loader) be the batches of an "
    "epoch; trainer.fit, under torchrun, and transformers' Trainer take streams"
)
EXACT_LENGTH = "let its len() be the number of batches of an epoch, or use trainer.fit, which takes loaders without one"
LABELS = ("tensors", "targets", "labels")  # attributes of data sets that tell them apart without reading a sample


def length_of(loader: Any) -> int | None:
    """The number of batches of an epoch; None where it is not known, as of a DataLoader over an IterableDataset."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def set_epoch(loader: Any, epoch: int) -> None:
    """Tell the samplers that want to know it the number of the epoch, from which they shuffle."""
    loader = getattr(loader, "loader", loader)  # of a replica's part
    for name in ("sampler", "batch_sampler"):
        sampler: Any = getattr(loader, name, None)
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)


def skipping(loader: Any) -> Any:
    """The loader's sampler, if it can begin in the middle of an epoch, as `EpochSampler` does; else None."""
    sampler = getattr(loader, "sampler", None)
    to = getattr(sampler, "set_epoch", None)
    return sampler if to is not None and "start" in inspect.signature(to).parameters else None


def counted(loader: Iterable[Any], length: int) -> Iterator[Any]:
    """The batches of an epoch, `length` of them: with other numbers a rank would leave the others waiting, and the next
    epoch would begin at the wrong batch."""
    count = 0
    for count, batch in enumerate(loader, start=1):
        if count > length:
            raise InputError(
                f"the loader gives more than the {length} batches that its length promises; {EXACT_LENGTH}"
            )
        yield batch
    if count < length:
        raise InputError(f"the loader ended after {count} of {length} batches that its length promises; {EXACT_LENGTH}")


def share_random(trainer: Engine, loader: Iterable[Any]) -> None:
    """Set the random state that shuffles and augments to rank 0's: torch's, Python's, NumPy's, the loader's own.

    Before every epoch, whether scripts are seeded or not. Ranks with replay buffers take targets from each other and
    need not meet.
    """
    if trainer.control is None or trainer.method.replay_buffers:
        return
    generators = _generators(loader)
    kind, key, *rest = np.random.get_state()
    mine = {
        "torch": [_text(state) for state in (torch.get_rng_state(), *(g.get_state() for g in generators))],
        "python": random.getstate(),
        "numpy": [str(kind), np.asarray(key).tolist(), *(float(n) for n in rest)],
    }
    found = exchange.from_first(mine, trainer.control)
    first, *others = (torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8) for text in found["torch"])
    torch.set_rng_state(first)
    for generator, state in zip(generators, others, strict=True):
        generator.set_state(state)
    version, words, gauss = found["python"]
    random.setstate((version, tuple(words), gauss))
    kind, key, position, has_gauss, cached = found["numpy"]
    np.random.set_state((kind, np.array(key, dtype=np.uint32), int(position), int(has_gauss), cached))


def _text(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _generators(loader: Any) -> list[torch.Generator]:
    """Generators that the loader and its sampler have of their own."""
    loader = getattr(loader, "loader", loader)  # of a replica's part
    sampler = getattr(loader, "sampler", None)
    batches = getattr(loader, "batch_sampler", None)
    found = [getattr(o, "generator", None) for o in (loader, sampler, batches, getattr(batches, "sampler", None))]
    return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())


def compare_data(trainer: Engine, epochs: int, loader: Any, test: Any = None, watch: LoopOptions | None = None) -> None:
    """All ranks must be about to run the same loop over the same data; the first difference is named on all of them."""
    if trainer.control is None:
        return
    facts: dict[str, Any] = {"number of epochs": epochs}
    for name, data in (("training data", loader), ("test data", test)):
        facts[name] = "given" if data is not None else "none"
        facts |= {f"{key} of the {name}": value for key, value in _facts(data).items()}
    if watch is not None:
        facts |= {f"option {name} (--{name.replace('_', '-')})": value for name, value in asdict(watch).items()}
    handshake.compare(facts, trainer.control)


def _facts(loader: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if (batches := length_of(loader)) is not None:
        found["number of batches"] = batches
    loader = getattr(loader, "loader", loader)
    for name in ("batch_size", "drop_last"):
        if isinstance(getattr(loader, name, None), int):
            found[name] = getattr(loader, name)
    data = getattr(loader, "dataset", None)
    if data is None:
        return found
    found["type"] = type(data).__name__
    if (samples := length_of(data)) is not None:
        found["number of samples"] = samples
    labels = [getattr(getattr(data, "found", None) or data, name, None) for name in LABELS]
    found["fingerprint"] = checksum([v for v in labels if isinstance(v, (list, tuple, torch.Tensor))])
    found["number of generators"] = len(_generators(loader))
    return found


def first_batches(loader: Any, count: int) -> Iterator[Any]:
    """The first batches of the loader's epoch, also where a resumed run began in the middle of it."""
    if (sampler := skipping(loader)) is not None:
        sampler.set_epoch(sampler.epoch)
    return islice(loader, count)


def loaded(trainer: Engine, loader: Iterable[Any]) -> Iterator[tuple[Any, float]]:
    """The batches of a loader, with the ms that each was waited for; the watchdog knows when one does not come."""
    began, end = time.perf_counter(), object()
    batches = iter(loader)
    while True:
        with board.away(trainer.steps, board.LOADING.strip("()")):
            batch = next(batches, end)
        if batch is end:
            return
        yield batch, 1e3 * (time.perf_counter() - began)
        began = time.perf_counter()


def first_batch(loader: Iterable[Any]) -> Any:
    """The first batch of a pass, without starting workers for it; None if there is none."""
    if isinstance(loader, DataLoader) and loader.num_workers:
        alone = copy(loader)
        vars(alone).update(num_workers=0, timeout=0, prefetch_factor=None, _iterator=None, persistent_workers=False)
        loader = alone
    return next(iter(loader), None)


def about_workers(loader: Any, world: int) -> None:
    """Say once where all ranks together start more workers than there are cores."""
    workers = getattr(loader, "num_workers", 0)
    cores = os.cpu_count() or 1
    if isinstance(workers, int) and workers * world > cores:
        warnings.warn(
            f"each of the {world} ranks starts {workers} workers of the loader, {workers * world} processes for "
            f"{cores} cores that the ranks need themselves; fewer may be faster",
            stacklevel=4,
        )
