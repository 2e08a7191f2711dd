"""Temporary folders of a program that may be killed: the next start removes those whose owner is gone.

The owner holds a lock on a file in its folder, which ends with its process however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX, LOCK = "lpcompile-", "lock"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards; those that killed processes left behind are removed first."""
    remove_abandoned()
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}"))
    with open(made / LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = made.rename(made.with_name(made.name[1:]))  # only now, when it is locked, may others look at it
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove this user's temporary folders whose owner no longer runs."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with contextlib.suppress(OSError):
            if lock.stat().st_uid != os.getuid():
                continue
            with open(lock) as opened:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
