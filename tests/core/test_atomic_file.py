"""Files that are whole or not there, and what a path may be besides."""

from __future__ import annotations

import json
import os
import threading

from lpcompile.core.atomic_file import write_json, write_text


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    file = tmp_path / "a.json"
    write_json(file, {"λ": 1})
    write_json(file, {"λ": 2})
    assert json.loads(file.read_text()) == {"λ": 2} and os.listdir(tmp_path) == ["a.json"]


def test_what_a_link_points_to_is_written(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    link.symlink_to(target)
    write_text(link, "after")
    assert link.is_symlink() and target.read_text() == "after"


def test_a_pipe_stays_one(tmp_path):
    """A bench with --json /dev/stdout once put a file in its place."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(10)
    assert read == ["through"] and pipe.is_fifo()
