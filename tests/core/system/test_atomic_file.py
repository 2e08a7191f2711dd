"""Files that are whole or not there, and what a path may be besides."""

from __future__ import annotations

import json
import os
import threading

import pytest

from lpcompile.core.system.atomic_file import replaced, write_json, write_text


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


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    file = tmp_path / "a"
    file.write_text("old")
    with pytest.raises(ValueError, match="half"), replaced(file) as part:
        part.write_text("new, but only ha")
        raise ValueError("half")
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["a"]


def test_a_durable_file_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(os, "fsync", lambda fd: seen.append((tmp_path / "a").exists()))
    with replaced(tmp_path / "a", durable=True) as part:
        part.write_bytes(b"1")
    assert seen == [False] and (tmp_path / "a").read_bytes() == b"1"


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "no" / "a", "text")
    assert caught.value.filename == str(tmp_path / "no" / "a")
