"""Checksums of files, so that a flipped bit is found when they are read: SHA-256 and size by name, in a JSON file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

CHUNK = 2**20
OWN = "sha256"  # where a JSON file has the checksum of its other content


def sums(folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """SHA-256 and size of files in a folder, by their names."""
    return {name: {"sha256": sha256(folder / name), "bytes": (folder / name).stat().st_size} for name in names}


def sha256(file: Path) -> str:
    found = hashlib.sha256()
    with open(file, "rb") as opened:
        while data := opened.read(CHUNK):
            found.update(data)
    return found.hexdigest()


def of_data(data: dict[str, Any]) -> str:
    """The checksum of JSON data without the one that it has itself, the same before writing and after reading."""
    rest = json.loads(json.dumps({name: value for name, value in data.items() if name != OWN}))
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def damage(folder: Path, expected: Any, listed: str) -> str | None:
    """The first file of a folder that differs from its record in `sums`, and how; None if all are intact.

    listed: the file that the records come from.
    """
    if not isinstance(expected, dict) or not all(isinstance(entry, dict) for entry in expected.values()):
        return f"the list of checksums in {listed} is not one"
    for name, entry in expected.items():
        file = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            return f"the list of checksums in {listed} names {name!r}, which is not in the folder"
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry.get("bytes"):
            return f"{name} has {file.stat().st_size} bytes instead of {entry.get('bytes')}"
        if sha256(file) != entry.get("sha256"):
            return f"{name} has another SHA-256 than when it was written"
    return None
