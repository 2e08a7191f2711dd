"""What a run writes of itself: lines of numbers, progress, and one trace of all ranks."""

from __future__ import annotations

import csv
import json
from itertools import pairwise

import pytest

from lpcompile.runtime.launch.launch import launch
from lpcompile.runtime.loop import log as logs
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from tests.distributed import jobs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    found = launch(jobs.watched, (str(folder),), world=2)
    assert found["test accuracy"] >= 0 and "violation 1" in found
    return folder


def test_a_line_every_so_many_steps_with_what_all_ranks_know(folder):
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    steps = [r for r in rows if "loss" in r]
    assert [r["step"] for r in steps] == [1, 3, 5, 7]
    wanted = {"loss", "violation 1", "beta 1", "lr", "step ms", "wait ms", "bytes", "epoch", "method",
              "wait ms 0", "wait ms 1"}  # fmt: skip
    assert all(wanted <= set(r) for r in steps)
    assert [r["test accuracy"] >= 0 for r in rows if "test accuracy" in r] == [True, True]


def test_the_trace_is_one_that_perfetto_opens(folder):
    trace = json.loads((folder / "trace.json").read_text())
    events = trace["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1} and min(e["ts"] for e in events if "ts" in e) == 0
    for e in events:
        assert {"ph", "name", "pid", "tid"} <= set(e) and e["ph"] in "MXC"
        assert e["ph"] == "M" or e["ts"] >= 0
        assert e["ph"] != "X" or (e["dur"] >= 0 and isinstance(e["args"]["step"], int))
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"rank 0: stage 0", "rank 1: stage 1"}
    for pid in (0, 1):
        mine = sorted((e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] == pid)
        assert {e["name"] for e in events if e["pid"] == pid} >= {"forward", "backward", "step"}
        assert all(a + d <= b + 1 for (a, d), (b, _) in pairwise(mine))  # one after another


def test_the_trace_has_each_ranks_memory(folder):
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    memory = [e["args"] for e in events if e["ph"] == "C"]
    kinds = {"parameters", "gradients", "optimizer", "buffers", "activations", "messages", "versions", "stores",
             "process"}  # fmt: skip
    assert len(memory) == 2 and all(set(m) == kinds and m["process"] > 50 for m in memory)
    assert all(m["activations"] > 0 for m in memory)
    assert all(m["optimizer"] >= 1.9 * m["parameters"] > 0 for m in memory)  # AdamW keeps two numbers for each


def test_csv_and_a_resumed_log(tmp_path):
    file = tmp_path / "log.csv"
    folder = str(tmp_path / "saved")
    watch = LoopOptions(log=str(file), log_every=1, save=folder, save_every=3, keep=9, evaluate_every=0)
    run(jobs.trainer(2, "penalty"), jobs.shuffled(), 1, watch=watch)
    rows = list(csv.DictReader(file.open()))
    assert [int(r["step"]) for r in rows] == [0, 1, 2, 3, 4] and float(rows[0]["loss"]) > 0
    assert rows[0]["train accuracy"] == "" and float(rows[4]["train accuracy"]) > 0  # the model's own, after an epoch
    whole = file.read_text()
    (tmp_path / "saved" / "step-00000004").rename(tmp_path / "gone")
    again = LoopOptions(**{**vars(watch), "resume": True})
    run(jobs.trainer(2, "penalty"), jobs.shuffled(), 1, watch=again)
    assert [r["step"] for r in csv.DictReader(file.open())] == ["0", "1", "2", "3", "4"]
    assert file.read_text().splitlines()[:4] == whole.splitlines()[:4]


def test_progress_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(logs.sys.stderr, "isatty", lambda: True)
    run(jobs.trainer(2, "penalty"), jobs.shuffled(), 1, watch=LoopOptions(log_every=1))
    shown = capsys.readouterr().err
    assert "step 4/4" in shown and "/s, 0:00 left, loss " in shown and "violation " in shown


def test_no_progress_without_a_terminal(capsys):
    run(jobs.trainer(2, "penalty"), jobs.shuffled(), 1)
    assert capsys.readouterr().err == ""


def test_tensorboard_is_optional(monkeypatch, tmp_path, capsys):
    import sys

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    run(jobs.trainer(2, "penalty"), jobs.shuffled(), 1, watch=LoopOptions(tensorboard=str(tmp_path)))
    assert "TensorBoard is not installed" in capsys.readouterr().err
