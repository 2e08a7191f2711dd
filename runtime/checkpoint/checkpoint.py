"""Checkpoints, from which a run goes on bit for bit, in folders that are whole or not there at all.

    DIR/step-000400/   run.json       steps, method, model, the plan
                       rank0.json     rank 0's state besides tensors (schedulers, β, ...)
                       rank0.safetensors, index.json

Parameters and their optimizer state are stored under the model's own names, so that a checkpoint loads at another K and
exports to a plain file. torch.distributed.checkpoint writes them into a temporary folder, which is renamed when all
of it is on disk. Reading unpickles nothing.
"""

from __future__ import annotations

import logging
import re
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from lpcompile.core.atomic_file import replaced, sync
from lpcompile.core.plan import Plan
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import named, plain
from lpcompile.runtime.checkpoint.storage import Reader, Writer, read_json, write_json
from lpcompile.runtime.launch import board

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

log = logging.getLogger("lpcompile")
VERSION = 1
NAME = re.compile(r"step-(\d+)")
RUN = "run.json"


def save(trainer: Engine, folder: Path, *, extra: dict[str, Any] | None = None, keep: int = 2) -> Path:
    """Write a checkpoint and keep the newest `keep`. All ranks must call it, and see the same folder."""
    trainer.flush()
    with board.away(trainer.steps, "saving a checkpoint"):
        return _save(trainer, folder, extra or {}, keep)


def _save(trainer: Engine, folder: Path, extra: dict[str, Any], keep: int) -> Path:
    given = named.state(trainer)
    target = folder / f"step-{trainer.steps:08d}"
    part = folder / f".part-{target.name}"
    if trainer.main:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    _meet(trainer)
    if trainer.first_rank == 0:  # all replicas are alike: the first one writes
        tensors: dict[str, Tensor] = {}
        for rank, own in given["ranks"].items():
            found, data = plain.flat(own, f"rank {rank}")
            write_json(part / f"rank{rank}.json", data)
            tensors |= found
        tensors |= given["model"]
        shared = {key: given[key] for key in named.SHARED} | {"extra": extra}
        run_tensors, run = plain.flat(shared, "run")
        if trainer.main:
            tensors |= run_tensors
            plan = trainer.plan.to_json()
            write_json(part / RUN, {"version": VERSION, "model": trainer.plan.model, "K": trainer.plan.K,
                                    "plan": plan, "state": run})  # fmt: skip
        group = trainer.mesh.along if trainer.mesh is not None and trainer.mesh.along is not None else trainer.control
        alone = not trainer.distributed or trainer.plan.K == 1
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # on purpose, in one process
            dcp_save(dict(tensors), storage_writer=Writer(part, trainer.rank), process_group=group, no_dist=alone)
    _meet(trainer)
    if trainer.main:
        sync(part)
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
        sync(folder)
        _prune(folder, keep)
    _meet(trainer)
    return target


def _meet(trainer: Engine) -> None:
    if trainer.distributed:
        dist.barrier(group=trainer.control)


def _prune(folder: Path, keep: int) -> None:
    for old in _all(folder)[: -max(keep, 1)]:
        shutil.rmtree(old, ignore_errors=True)
    for part in folder.glob(".part-*"):
        shutil.rmtree(part, ignore_errors=True)


def _all(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    found = [p for p in folder.iterdir() if NAME.fullmatch(p.name) and p.is_dir()] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def latest(folder: Path) -> Path | None:
    """The newest checkpoint in a folder, or None."""
    return next(reversed(_all(folder)), None)


def find(path: Path) -> Path:
    """A checkpoint by its own path, or the newest in a folder of them."""
    found = path if (path / RUN).is_file() else latest(path)
    if found is None:
        raise UsageError(f"there is no checkpoint in {path}; give a folder that --save or trainer.save wrote")
    return found


def describe(folder: Path) -> dict[str, Any]:
    """The content of run.json: model, K, plan."""
    found = read_json(folder / RUN)
    version = found.get("version") if isinstance(found, dict) else None
    if version != VERSION:
        raise UsageError(f"{folder} is not a checkpoint of version {VERSION} (version: {version!r})")
    assert isinstance(found, dict)
    return found


def load(trainer: Engine, folder: Path) -> dict[str, Any]:
    """Go on from a checkpoint; gives the `extra` that was saved with it. All ranks must call it."""
    run, reader = describe(folder), Reader(folder)
    check_model(trainer.program.module, folder)
    shared = plain.nested(run["state"], read(reader, plain.names(run["state"])))
    tensors = read(reader, named.wanted(trainer, reader.files))
    if _layout(Plan.from_json(run["plan"])) == _layout(trainer.plan):
        own = {}
        for rank in [w.rank for w in trainer.workers]:
            data = read_json(folder / f"rank{rank}.json")
            own[rank] = plain.nested(data, read(reader, plain.names(data)))
        named.load(trainer, {**shared, "ranks": own, "model": tensors})
    else:
        lost = named.load_elsewhere(trainer, {**shared, "model": tensors}, read_json(folder / "rank0.json"))
        if trainer.main:
            log.warning("%s was saved with K = %d and another plan: weights, optimizer state and step are taken over; "
                        "%s start anew", folder, run["K"], lost)  # fmt: skip
    extra: dict[str, Any] = shared["extra"]
    return extra


def _layout(plan: Plan) -> list[Any]:
    """The parts of a plan that must be equal for a rank to load the state of the same rank."""
    nets = [b.aux for b in plan.boundaries]
    made = [a and (a.kind, a.rank, a.kept, a.dropped, a.thinned) for a in nets]
    return [plan.K, [(b.position, b.values) for b in plan.boundaries], made]


def check_model(model: nn.Module, folder: Path) -> None:
    """The checkpoint must be one of this model: the same names and shapes."""
    run, sizes = describe(folder), _sizes(Reader(folder))
    found = {n.removeprefix(named.MODEL): tuple(m.size) for n, m in sizes.items() if n.startswith(named.MODEL)}
    wanted = {n: tuple(t.shape) for n, t in model.state_dict().items() if isinstance(t, Tensor)}
    if found == wanted:
        return
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(n for n in wanted.keys() & found.keys() if wanted[n] != found[n])
    what = (
        f"{missing[0]} is missing" if missing else f"{unknown[0]} is not in the model" if unknown else
        f"{other[0]} is {list(found[other[0]])} instead of {list(wanted[other[0]])}"
    )  # fmt: skip
    raise UsageError(
        f"{folder} is a checkpoint of another model ({run['model']}, not {type(model).__name__}): {what}; "
        f"train the model that it was made of, or give another folder"
    )


def _sizes(reader: Reader) -> dict[str, Any]:
    return reader.read_metadata().state_dict_metadata


def read(reader: Reader, names: Any) -> dict[str, Tensor]:
    """These tensors, on the CPU."""
    sizes = _sizes(reader)
    missing = [n for n in names if n not in sizes]
    if missing:
        raise UsageError(f"{reader.folder} does not hold {missing[0]!r}; is it a whole checkpoint?")
    found = {n: torch.empty(sizes[n].size, dtype=sizes[n].properties.dtype) for n in names}
    if found:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # on purpose
            dcp_load(found, storage_reader=reader, no_dist=True)
    return found


def model_state(folder: Path) -> dict[str, Tensor]:
    """The original model's state dict out of a checkpoint: `model.load_state_dict(..., strict=True)`."""
    folder = find(folder)
    describe(folder)
    reader = Reader(folder)
    names = [n for n in reader.files if n.startswith(named.MODEL)]
    return {n.removeprefix(named.MODEL): t for n, t in read(reader, names).items()}


def export(folder: Path, file: Path) -> int:
    """Write the model's state as a plain safetensors file; gives the number of tensors."""
    from safetensors.torch import save_file

    state = {name: t.clone() for name, t in model_state(folder).items()}
    with replaced(file, durable=True) as part:
        save_file(state, part)
    return len(state)
