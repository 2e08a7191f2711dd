"""Atomic writes of checkpoints: all values are finite, and all ranks learn whether it succeeded."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from torch import Tensor

from lpcompile.core.system import checksum
from lpcompile.core.system.atomic_file import sync
from lpcompile.errors import LpError, TrainingError
from lpcompile.runtime.checkpoint import finite, named, plain
from lpcompile.runtime.checkpoint.checkpoint import CHECKSUMS, PART, RUN, VERSION, all_in, latest
from lpcompile.runtime.checkpoint.storage import INDEX, write_json, write_tensors
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.launch import board

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine


class SaveError(TrainingError):
    """A checkpoint could not be written; nothing is left of it, and older ones are untouched."""


def save(trainer: Engine, folder: Path, *, extra: dict[str, Any] | None = None, keep: int = 2) -> Path:
    """Write a checkpoint and keep the newest `keep`. All ranks must call it, and see the same folder."""
    trainer.flush()
    with board.away(trainer.steps, "saving a checkpoint"):
        tensors, data = content(trainer, extra or {})
        finite.check(trainer, tensors, f"nothing was saved, and the newest checkpoint is {latest(folder) or 'none'}")
        target = folder / f"step-{trainer.steps:08d}"
        part = folder / f"{PART}{target.name}"
        try:
            _write(trainer, part, tensors, data)
            everyone(trainer, lambda: _finish(part, target, keep) if trainer.main else None)
        except SaveError as error:
            if trainer.main:
                shutil.rmtree(part, ignore_errors=True)
            raise SaveError(f"{error}; the newest checkpoint is {latest(folder) or 'none'}") from None
        return target


def content(trainer: Engine, extra: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name and JSON data by file that this process saves; of replicas, which are alike, the first one."""
    if trainer.first_rank != 0:
        return {}, {}
    given = named.state(trainer)
    tensors: dict[str, Tensor] = {}
    data: dict[str, Any] = {}
    for rank, own in given["ranks"].items():
        found, data[f"rank{rank}.json"] = plain.flat(own, f"rank {rank}")
        tensors |= found
    tensors |= given["model"]
    if trainer.main:
        shared = {key: given[key] for key in named.SHARED} | {"extra": extra}
        found, run = plain.flat(shared, "run")
        tensors |= found
        data[RUN] = {"version": VERSION, "model": trainer.plan.model, "K": trainer.plan.K,
                     "plan": trainer.plan.to_json(), "state": run}  # fmt: skip
    return tensors, data


def _write(trainer: Engine, part: Path, tensors: dict[str, Tensor], data: dict[str, Any]) -> None:
    """All files of the checkpoint. A tensor of several ranks, as a tied parameter, is written by the lowest of them."""

    def begin() -> list[str]:
        if trainer.main:
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
        return sorted(tensors)

    names = everyone(trainer, begin)
    this = trainer.first_rank + trainer.rank
    below = {name for found in names[:this] for name in found}

    def write() -> dict[str, Any]:
        own = {name: t for name, t in tensors.items() if name not in below}
        for file, found in data.items():
            write_json(part / file, found)
        files = [write_tensors(part, trainer.rank, own)] if own else []
        return {"index": dict.fromkeys(own, *files), "sums": checksum.sums(part, [*data, *files])}

    written = everyone(trainer, write)

    def describe() -> None:
        write_json(part / INDEX, {name: file for found in written for name, file in found["index"].items()})
        sums = {name: entry for found in written for name, entry in found["sums"].items()}
        sums |= checksum.sums(part, [INDEX])
        write_json(part / CHECKSUMS, sums | {checksum.OWN: checksum.of_data(sums)})

    everyone(trainer, lambda: describe() if trainer.main else None)


def _finish(part: Path, target: Path, keep: int) -> None:
    sync(part)
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)
    sync(target.parent)
    for old in all_in(target.parent)[: -max(keep, 1)]:
        if old != target:  # older by its step: another run's may have more
            shutil.rmtree(old, ignore_errors=True)


def everyone(trainer: Engine, do: Callable[[], Any]) -> list[Any]:
    """Do something on every rank, and give the results of all; a failure to write on one rank is raised on all."""
    try:
        mine: dict[str, Any] = {"result": do()}
    except (OSError, SafetensorError, LpError) as error:
        mine = {"error": f"rank {trainer.first_rank + trainer.rank}: {error}"}
    found = exchange.gathered(mine, trainer.control) if trainer.distributed else [mine]
    wrong = next((one["error"] for one in found if "error" in one), None)
    if wrong is not None:
        raise SaveError(f"no checkpoint can be written at step {trainer.steps}: {wrong}")
    return [one["result"] for one in found]
