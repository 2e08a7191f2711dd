"""Checkpoints, from which a run goes on bit for bit, in folders that are whole or not there at all.

    DIR/step-000400/   run.json       steps, method, model, the plan
                       rank0.json     rank 0's state besides tensors (schedulers, β, ...)
                       rank0.safetensors, index.json
                       checksums.json SHA-256 of all of these

Parameters and their optimizer state are stored under the model's own names, so that a checkpoint loads at another K and
exports to a plain file. They are written (`save`) into a temporary folder, which is renamed when all of it is on disk.
Reading compares the checksums. Nothing is unpickled, neither from files nor from other ranks.
"""

from __future__ import annotations

import logging
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from lpcompile.core.plan import Plan
from lpcompile.core.system import checksum
from lpcompile.core.system.atomic_file import replaced
from lpcompile.errors import LpError, TrainingError, UsageError
from lpcompile.runtime.checkpoint import named, plain
from lpcompile.runtime.checkpoint.storage import Reader, read_json
from lpcompile.runtime.comm import exchange

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

log = logging.getLogger("lpcompile")
VERSION = 2
NAME = re.compile(r"step-(\d+)")
RUN, CHECKSUMS = "run.json", "checksums.json"
VERIFY = "see what is wrong with it: python -m lpcompile checkpoint verify {0}"
BEST, NOTE = "best", "best.json"  # the folder of the best checkpoint, and its figure beside it
PART = ".part-"  # begins the name of a checkpoint that is being written
BROKEN = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, OSError, SafetensorError)


def all_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    found = [p for p in folder.iterdir() if NAME.fullmatch(p.name) and p.is_dir()] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def latest(folder: Path) -> Path | None:
    """The newest checkpoint in a folder, or None."""
    return next(reversed(all_in(folder)), None)


def find(path: Path) -> Path:
    """A checkpoint by its own path, or the newest in a folder of them."""
    found = path if (path / RUN).is_file() else latest(path)
    if found is None:
        raise UsageError(f"there is no checkpoint in {path}; give a folder that --save or trainer.save wrote")
    return found


def describe(folder: Path) -> dict[str, Any]:
    """The content of run.json: model, K, plan."""
    found = read_json(folder / RUN)
    if not isinstance(found, dict) or found.get("version") != VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        raise UsageError(f"{folder} is not a checkpoint of version {VERSION} (version in {RUN}: {version!r})")
    kinds = {"model": str, "K": int, "plan": dict, "state": dict}
    odd = next((name for name, kind in kinds.items() if not isinstance(found.get(name), kind)), None)
    if odd is not None:
        raise TrainingError(f"{folder / RUN} is broken: its {odd!r} is {found.get(odd)!r}; {VERIFY.format(folder)}")
    return found


def damage(folder: Path) -> str | None:
    """The file of a checkpoint that is not as it was written, and why; None if it is whole."""
    try:
        describe(folder)
        sums = read_json(folder / CHECKSUMS)
        if isinstance(sums, dict) and sums.pop(checksum.OWN, checksum.of_data(sums)) != checksum.of_data(sums):
            return f"{CHECKSUMS} has another SHA-256 than when it was written"
        return checksum.damage(folder, sums, CHECKSUMS) or _unlisted(folder, sums)
    except (LpError, *BROKEN) as error:
        return str(error)


def _unlisted(folder: Path, sums: dict[str, Any]) -> str | None:
    """A file of the checkpoint that has no checksum."""
    found = {p.name for p in folder.iterdir() if p.suffix in (".json", ".safetensors")} - {CHECKSUMS}
    return next((f"{CHECKSUMS} does not list {name}" for name in sorted(found - sums.keys())), None)


def newest_whole(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint in a folder that is not damaged, and what is wrong with those after it."""
    wrong: list[str] = []
    for found in reversed(all_in(folder)):
        reason = damage(found)
        if reason is None:
            return found, wrong
        wrong.append(f"{found} is damaged: {reason}")
    return None, wrong


def resumable(folder: Path, group: Any = None) -> Path | None:
    """The checkpoint from which all ranks go on: the newest whole one that rank 0 sees, or None if there are none."""
    first = not dist.is_initialized() or dist.get_rank() == 0
    path, wrong = newest_whole(folder) if first else (None, [])
    name = path.name if path else None
    if dist.is_initialized():
        name, wrong = exchange.from_first([name, wrong], group)
    if name is None and wrong:
        raise TrainingError(
            f"no checkpoint in {folder} is whole, so there is nothing to go on from: {'; '.join(wrong)}; "
            f"give another folder, or leave out --resume"
        )
    if name is None:
        return None
    for text in wrong if first else ():
        log.warning("%s; going on from %s", text, folder / name)
    return folder / name


def load(trainer: Engine, folder: Path, *, verified: bool = False) -> dict[str, Any]:
    """Go on from a checkpoint; gives the `extra` that was saved with it. All ranks must call it.

    verified: its checksums were compared a moment ago.
    """
    reason = None if verified or not trainer.main else damage(folder)
    reason = exchange.from_first(reason, trainer.control) if trainer.distributed else reason
    if reason is not None:
        raise TrainingError(f"{folder} is damaged: {reason}; load an older one, or train anew")
    try:
        return _load(trainer, folder)
    except BROKEN as error:
        raise TrainingError(
            f"{folder} cannot be loaded ({type(error).__name__}: {error}); {VERIFY.format(folder)}"
        ) from error


def _load(trainer: Engine, folder: Path) -> dict[str, Any]:
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
            try:
                dcp_load(found, storage_reader=reader, no_dist=True)
            except CheckpointException as wrapped:  # no Exception, and its text is a traceback
                raise next(iter(wrapped.failures.values()))[0] from None
    return found


def model_state(folder: Path, average: bool = False) -> dict[str, Tensor]:
    """The original model's state dict out of a checkpoint: `model.load_state_dict(..., strict=True)`.

    average: of the moving average of the weights, where the run kept one.
    """
    folder = find(folder)
    reason = damage(folder)
    if reason is not None:
        raise TrainingError(f"{folder} is damaged: {reason}; give an older one by its own path")
    reader = Reader(folder)
    prefix = named.AVERAGE if average else named.MODEL
    names = [n for n in reader.files if n.startswith(prefix)]
    if not names:
        raise UsageError(f"{folder} has no average of the weights; it is kept by runs with --model-ema")
    return {n.removeprefix(prefix): t for n, t in read(reader, names).items()}


def export(folder: Path, file: Path, average: bool = False) -> int:
    """Write the model's state, or its average, as a plain safetensors file; gives the number of tensors."""
    from safetensors.torch import save_file

    state = {name: t.clone() for name, t in model_state(folder, average).items()}
    with replaced(file, durable=True) as part:
        save_file(state, part)
    return len(state)
