"""Results survive what may happen to a file."""

from __future__ import annotations

import pytest

from lpcompile.errors import UsageError
from lpcompile.study.records import append, locked, provenance, read, results


def test_a_line_that_was_cut_off_counts_as_not_there_and_the_next_stands_by_itself(tmp_path):
    file = tmp_path / "runs.jsonl"
    assert read(file) == []
    append(file, {"key": "a"})
    with file.open("a") as stream:
        stream.write('{"key": "b", "accur')
    assert read(file) == [{"key": "a"}]
    append(file, {"key": "c"})
    assert [line["key"] for line in read(file)] == ["a", "c"]


def test_a_run_that_crashed_is_run_again_and_the_last_record_of_a_run_counts(tmp_path):
    for record in ({"key": "a", "crash": True}, {"key": "b"}, {"key": "c", "crash": True}, {"key": "c", "n": 2}):
        append(tmp_path / "runs.jsonl", record)
    assert results(tmp_path) == {"b": {"key": "b"}, "c": {"key": "c", "n": 2}}


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    file = tmp_path / "runs.jsonl"
    file.write_text('{"key": "a"}\n[1, 2]\n{"key": "c"}\n')
    with pytest.raises(UsageError, match="line 2"):
        read(file)


def test_two_studies_do_not_write_into_one_folder(tmp_path):
    with locked(tmp_path), pytest.raises(UsageError, match="another study"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_a_record_says_where_it_comes_from():
    assert set(provenance()) == {"commit", "machine", "torch", "date"}


def test_ctrl_c_says_that_what_is_done_is_kept(tmp_path, capsys):
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "out"):
        raise KeyboardInterrupt
    assert f"what is done is in {tmp_path / 'out'}, and the same command goes on" in capsys.readouterr().err
