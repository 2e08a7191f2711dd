"""The results of a study: one JSON line for each run, written whole, with the commit and the machine that made it."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lpcompile.errors import UsageError
from lpcompile.training.measures import machine

RUNS, TIMES, LOCK = "runs.jsonl", "times.jsonl", "lock"
WRITTEN = (RUNS, TIMES, LOCK, "tables.md")  # one of these is in every folder of results


def read(file: Path) -> list[dict[str, Any]]:
    """The records of a file. A last line that was cut off (a full disk, a power cut) counts as not there."""
    lines = file.read_text(encoding="utf-8").split("\n") if file.is_file() else []
    found = []
    for number, line in enumerate(lines, start=1):
        record = _record(line)
        if record is not None:
            found.append(record)
        elif line.strip() and number < len(lines):
            raise UsageError(f"{file}, line {number} is no record; remove the line, and its run is done again")
    return found


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """The runs in a folder by their keys, the last of each; those that crashed are left out, to be run again."""
    found = {record["key"]: record for record in read(folder / RUNS)}
    return {key: record for key, record in found.items() if not record.get("crash")}


def _record(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def append(file: Path, record: Mapping[str, Any]) -> None:
    """Add one line, in one write that is on disk when this returns. A line before it that was cut off is removed."""
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
    before = file.read_bytes() if file.exists() else b""
    last = before.rpartition(b"\n")[2]
    with file.open("ab") as stream:
        if last and _record(last.decode(errors="replace")) is None:
            stream.truncate(len(before) - len(last))
        elif last:
            line = b"\n" + line
        stream.write(line)
        stream.flush()
        os.fsync(stream.fileno())


def check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else: tables and pages replace files of their names."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"--out {folder} is a file; give a folder")
    if folder.is_dir() and any(folder.iterdir()) and not any((folder / name).exists() for name in WRITTEN):
        raise UsageError(
            f"--out {folder} is not empty and holds no results of this command; give a new or empty folder"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One study at a time writes into a folder."""
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another study is writing to {folder}; wait for it, or give another --out") from None
        try:
            yield
        except KeyboardInterrupt:
            print(f"ended; what is done is in {folder}, and the same command goes on with the rest", file=sys.stderr)
            raise


def provenance() -> dict[str, Any]:
    """The commit of lpcompile (with + where files were changed), the machine, and torch's version."""
    found = machine()
    return {"commit": commit(), "machine": f"{found['cores']} x {processor()}", "torch": found["torch"],
            "date": found["date"]}  # fmt: skip


def commit() -> str:
    here = Path(__file__).resolve().parent
    git = ["git", "-C", str(here)]
    with suppress(OSError, subprocess.SubprocessError):
        name = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=30, check=True
        )
        top = Path(subprocess.run([*git, "rev-parse", "--show-toplevel"], capture_output=True, text=True, timeout=30,
                                  check=True).stdout.strip())  # fmt: skip
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, timeout=30)
        if top == here.parent.parent:  # not another repository that lpcompile happens to lie in
            return name.stdout.strip() + ("+" if changed.stdout.strip() else "")
    return "unknown"


def processor() -> str:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return platform.processor() or platform.machine()
