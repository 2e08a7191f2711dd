"""A JSON file that a user named: read, or refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lpcompile.errors import UsageError


def read_json(path: Path, what: str) -> Any:
    """The content. what: the file in error messages, such as "--gate rules.json"."""
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"{what} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON: {error}") from None
