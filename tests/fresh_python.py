"""Python in a process of its own, for what an import brings in."""

from __future__ import annotations

import subprocess
import sys


def printed(code: str) -> str:
    """What a fresh interpreter prints that runs this code; a failure shows its error."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
