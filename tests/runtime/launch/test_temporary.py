"""Temporary folders of killed processes are removed by the next one; those in use stay."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from lpcompile.runtime.launch.temporary import temporary_folder

KEEP = """
import sys
from lpcompile.runtime.launch.temporary import temporary_folder
with temporary_folder() as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_a_killed_owners_folder_is_removed_and_a_living_ones_is_not(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", KEEP], **given) as killed:
        first = killed.stdout.readline().strip()
        with subprocess.Popen([sys.executable, "-c", KEEP], **given) as living:
            second = living.stdout.readline().strip()
            killed.kill()
            killed.wait(20)
            with temporary_folder() as folder:
                left = {str(p) for p in tmp_path.iterdir()}
                assert left == {second, str(folder)} and first not in left
            living.stdin.close()
            assert living.wait(20) == 0
    assert not list(tmp_path.iterdir())
