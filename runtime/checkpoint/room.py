"""Checks before training that checkpoints can be written: the folder, a file in it, room for two.

A lock on the folder keeps other runs from writing there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lpcompile.errors import TrainingError
from lpcompile.runtime.checkpoint import named
from lpcompile.runtime.checkpoint.checkpoint import BEST, NOTE, PART, all_in, latest
from lpcompile.runtime.checkpoint.save import SaveError, everyone

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

STATES = {"SGD": 1, "Adagrad": 1, "RMSprop": 1}  # tensors that an optimizer keeps for each weight; of others 2


PROBE = ".probe-"
PATIENCE = 10.0  # seconds in which the processes of a run that was killed have ended


@contextlib.contextmanager
def reserved(trainer: Engine, save: str | None) -> Iterator[None]:
    """Inside, no other run saves into the folder: two would remove each other's checkpoints. All ranks call it.

    The lock ends with the process that holds it, however that ends.
    """
    held: list[int] = []

    def take() -> None:
        if trainer.main and save is not None:
            probe(Path(save))
            held.append(_locked(Path(save)))

    try:
        if save is not None:
            everyone(trainer, take)
        yield
    finally:
        for opened in held:
            with contextlib.suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_UN)  # processes that load data have it, too
            os.close(opened)


def _locked(folder: Path) -> int:
    """The folder, opened and locked."""
    opened, end = os.open(folder, os.O_RDONLY), time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return opened
        except BlockingIOError:
            if time.monotonic() > end:
                os.close(opened)
                raise TrainingError(
                    f"another run is saving into {folder}; wait until it has ended, or give --save another folder"
                ) from None
            time.sleep(PATIENCE / 50)
        except OSError:  # a file system without locks
            return opened


def probe(folder: Path) -> None:
    """Make the folder, and write and rename a small file in it."""
    file = folder / f"{PROBE}{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(4096))
        file.replace(renamed := file.with_suffix(".renamed"))
        renamed.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            file.unlink()
        raise TrainingError(
            f"--save {folder} cannot be written: {error.strerror or error}; give another folder"
        ) from None


def prepare(trainer: Engine, folder: Path, resume: bool = False) -> None:
    """Before the first step, on all ranks alike: remove what a killed run left half written, and look for room."""

    def look() -> int:
        if trainer.main:
            probe(folder)
            if not resume:
                _refuse_earlier(folder)
            for part in (*folder.glob(f"{PART}*"), *folder.glob(f"{BEST}/{PART}*")):
                shutil.rmtree(part, ignore_errors=True)
            for file in (*folder.glob(f"{PROBE}*"), *folder.glob(f"{BEST}/.{NOTE}.*")):
                file.unlink(missing_ok=True)
        return nbytes(trainer) if trainer.first_rank == 0 else 0

    try:
        sizes = everyone(trainer, look)
        everyone(trainer, lambda: _check_room(folder, sum(sizes)) if trainer.main else None)
    except SaveError as error:
        raise TrainingError(str(error)) from None


def _refuse_earlier(folder: Path) -> None:
    """A run from the beginning would replace the checkpoints of an earlier one, step by step."""
    newest = latest(folder)
    if newest is not None:
        raise TrainingError(
            f"{folder} has checkpoints of an earlier run, the newest {newest.name}, and this one begins at step 0; go "
            f"on from it with --resume (resume=True), or give --save another folder"
        )


def _check_room(folder: Path, size: int) -> None:
    held = sum(f.stat().st_size for old in all_in(folder) for f in old.iterdir() if f.is_file())
    free = shutil.disk_usage(folder).free
    if free + held < 2 * size:
        raise OSError(
            f"{folder} has room for {free / 2**20:.1f} MiB, and two checkpoints take {2 * size / 2**20:.1f} MiB; "
            f"free some, or give --save a folder on another disk"
        )


def nbytes(trainer: Engine) -> int:
    """Bytes of this process's part of a checkpoint, once optimizers have their state."""
    found = sum(t.nbytes for name, t in named.tensors(trainer).items() if not name.startswith(named.OPTIMIZER))
    for w in trainer.workers:
        for optimizer in w.updater.optimizers().values():
            weights = sum(p.nbytes for group in optimizer.param_groups for p in group["params"])
            found += STATES.get(type(optimizer).__name__, 2) * weights
    return found
