"""The log file: one line per record, columns that grow, and a resumed run."""

from __future__ import annotations

import csv
import json

import pytest
import torch
import torch.nn.functional as F

from lpcompile.runtime.loop import log as logs
from lpcompile.runtime.loop.loggers import LogFile
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from tests.runtime.small import batches, compiled, norm_mlp, sgd

DATA = batches(4, dtype=torch.float32)


def test_a_new_column_is_empty_in_earlier_rows(tmp_path):
    out = LogFile(tmp_path / "log.csv", 0)
    out.log({"step": 0, "loss": 1.5}, 0)
    out.log({"step": 1, "test accuracy": 0.5}, 0)
    out.close()
    assert list(csv.DictReader((tmp_path / "log.csv").open())) == [
        {"step": "0", "loss": "1.5", "test accuracy": ""},
        {"step": "1", "loss": "", "test accuracy": "0.5"},
    ]


def test_a_resumed_log_keeps_whole_lines_before_its_checkpoint(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text("".join(json.dumps({"step": step}) + "\n" for step in range(5)) + '{"step": 1')
    out = LogFile(file, 3)
    out.log({"step": 3, "again": True}, 0)
    out.close()
    assert [json.loads(line) for line in file.read_text().splitlines()] == [
        {"step": 0}, {"step": 1}, {"step": 2}, {"step": 3, "again": True}]  # fmt: skip


@pytest.mark.parametrize("odd", ["{", "[1]", '{"loss": 1}', '{"step": "x"}'])
def test_a_resumed_log_leaves_out_lines_that_cannot_be_read_and_says_so(tmp_path, odd, caplog):
    file = tmp_path / "log.jsonl"
    file.write_text(f'{{"step": 0}}\n{odd}\n{{"step": 1}}\n')
    LogFile(file, 3).close()
    assert file.read_text() == '{"step": 0}\n{"step": 1}\n'
    assert f"line 2 of {file} cannot be read and is left out" in caplog.text


def test_a_log_that_cannot_be_written_does_not_end_the_run(tmp_path, caplog):
    t = compiled(norm_mlp(), 2, DATA[0][0]).trainer(F.cross_entropy, optimizer=sgd, method="bp")
    record = run(t, DATA, 1, watch=LoopOptions(log="/dev/full", log_every=2, train_batches=0))
    assert t.steps == len(DATA) and record["loss"] > 0
    assert "step 2 cannot be logged: [Errno 28] No space left on device" in caplog.text


def test_a_run_from_the_beginning_starts_a_new_log(tmp_path):
    file = tmp_path / "new" / "log.jsonl"
    for _ in range(2):
        out = LogFile(file, 0)
        out.log({"step": 0}, 0)
        out.close()
    assert file.read_text() == '{"step": 0}\n'


@pytest.mark.parametrize(("seconds", "text"), [(3.2, "0:03"), (75, "1:15"), (3725, "1:02:05")])
def test_clock(seconds, text):
    assert logs._clock(seconds) == text
