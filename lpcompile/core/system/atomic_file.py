"""Atomic file writes: a file is written beside its place and then renamed, so a reader sees all of it or none."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replaced(file: Path, *, durable: bool = False) -> Iterator[Path]:
    """A temporary path beside `file`, renamed to it when the block ends.

    A reader never sees half a file; a failure leaves the old file and no other. Links are followed.
    durable: the file is on disk (fsync) before it gets its name.

    >>> with replaced(Path("model.safetensors")) as part:
    ...     save_file(tensors, part)
    """
    target = file.resolve()
    part = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        yield part
        if durable:
            sync(part)
        part.replace(target)
    except OSError as error:
        if error.filename == str(part):
            error.filename = str(file)  # the caller knows nothing of the other
        raise
    finally:
        part.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    """Replace a file by this text. Pipes and devices, /dev/stdout among them, are written to as they are."""
    if file.exists() and (not file.is_file() or file.is_relative_to("/dev")):
        with file.open("a", encoding="utf-8") as stream:
            stream.write(text)
        return
    with replaced(file) as part:
        part.write_text(text, encoding="utf-8")


def write_json(file: Path, data: Any) -> None:
    write_text(file, json.dumps(data, ensure_ascii=False, indent=1) + "\n")


def sync(path: Path) -> None:
    """Return when a file or folder is on disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
