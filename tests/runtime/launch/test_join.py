"""A process group that somebody else opened is closed at the end of the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import atexit, sys
import torch.distributed as dist
from lpcompile.runtime.launch import launch

atexit.register(lambda: print("open at the end:", dist.is_initialized()))  # runs last: it was registered first
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
launch.join()
{end}
"""


def ended(folder: Path, end: str) -> str:
    command = [sys.executable, "-c", SCRIPT.format(end=end), str(folder / "store")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def test_a_group_that_a_script_opened_is_closed_when_it_ends(tmp_path: Path) -> None:
    assert ended(tmp_path, "") == "open at the end: False\n"


def test_after_an_exception_nothing_is_closed(tmp_path: Path) -> None:
    assert ended(tmp_path, "raise ValueError('of the script')") == "open at the end: True\n"
