"""Files that are whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(file: Path, data: Any) -> None:
    """Beside and then renamed: a reader never sees half of it, and a failure leaves what was there."""
    part = file.with_name(f".{file.name}.{os.getpid()}")
    part.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    part.replace(file)
