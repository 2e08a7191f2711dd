"""Files that a command will write, checked before it begins."""

from __future__ import annotations

import os
from pathlib import Path

from lpcompile.errors import UsageError


def writable(option: str, given: str | None) -> Path | None:
    """A file that can be written in the end, checked before an hour of training."""
    if given is None:
        return None
    file = Path(given)
    if file.is_dir() or not file.parent.is_dir() or not _may_write(file):
        raise UsageError(f"--{option} {file} cannot be written: give a file in a folder that exists and is yours")
    return file


def _may_write(file: Path) -> bool:
    """Open it for writing: permissions alone do not tell, since /proc accepts no new file even from root."""
    if file.exists():
        return os.access(file, os.W_OK)
    try:
        file.touch()
        file.unlink()
    except OSError:
        return False
    return True
