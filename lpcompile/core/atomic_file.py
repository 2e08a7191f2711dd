"""Files that are whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(file: Path, data: Any) -> None:
    write_text(file, json.dumps(data, ensure_ascii=False, indent=1) + "\n")


def write_text(file: Path, text: str) -> None:
    """Beside and then renamed: a reader never sees half of it, and a failure leaves what was there. What a link points
    to is written; pipes and devices, /dev/stdout among them, are written to as they are."""
    if file.exists() and (not file.is_file() or file.is_relative_to("/dev")):
        with file.open("a", encoding="utf-8") as stream:
            stream.write(text)
        return
    file = file.resolve()
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(file)
