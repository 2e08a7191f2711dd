"""A rank that dies, raises or hangs ends the job everywhere, soon, and its name is the first in the message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch

from lpcompile.errors import TrainingError
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.launch.launch import Interrupted, launch
from tests.distributed import jobs
from tests.distributed.deadline import started, wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The weights of a run that nothing happened to."""
    return launch(jobs.killed, ("", str(tmp_path_factory.mktemp("whole"))), world=2)


@pytest.mark.parametrize(
    ("where", "named"),
    [
        ("forward", "rank 1 (stage 1) was killed by SIGKILL (step 3, instruction 'forward"),
        ("backward", "rank 1 (stage 1) was killed by SIGKILL (step 3, instruction 'backward"),
        ("sending", "rank 0 (stage 0) was killed by SIGKILL (step 3, instruction 'send"),
        ("saving", "rank 1 (stage 1) was killed by SIGKILL (step 4, saving a checkpoint)"),
    ],
)
def test_a_killed_rank_ends_the_job_and_it_resumes_to_the_same_weights(where, named, tmp_path, expected):
    begin = time.time()
    with pytest.raises(Interrupted) as caught:
        launch(jobs.killed, (where, str(tmp_path)), world=2)
    assert time.time() - begin < 30
    assert str(caught.value).splitlines()[0].startswith(f"training stopped: {named}")
    last = checkpoint.latest(tmp_path)
    assert last is not None and last.name == "step-00000002"
    found = launch(jobs.killed, ("", str(tmp_path), True), world=2)
    assert list(found) == list(expected) and all(torch.equal(found[n], expected[n]) for n in found)


def test_a_rank_that_raises_is_named_with_its_traceback(tmp_path):
    with pytest.raises(Interrupted) as caught:
        launch(jobs.killed, ("raise", str(tmp_path)), world=2)
    text = str(caught.value)
    assert text.startswith("training stopped: rank 1 (stage 1) failed: ValueError: the loss is broken (step 3, instr")
    assert "in loss\n" in text and "then: rank 0 (stage 0) lost the others" in text


def test_an_error_of_ours_keeps_its_type(tmp_path):
    with pytest.raises(TrainingError, match="nothing to learn"):
        launch(jobs.killed, ("usage", str(tmp_path)), world=2)


def test_a_rank_that_hangs_is_named(tmp_path):
    begin = time.time()
    with pytest.raises(Interrupted, match=r"rank 1 \(stage 1\) has not moved for 2 s \(step 3, instruction 'forward"):
        launch(jobs.killed, ("forward", str(tmp_path), False, signal.SIGSTOP), world=2, timeout=2)
    assert time.time() - begin < 20


def test_processes_that_load_data_end_with_their_rank(tmp_path):
    """And a loader that computes for longer than the time-out does not hang."""
    assert launch(jobs.loading, (str(tmp_path), 3.0, 1), world=2, timeout=2) == 8
    names = ["loader0", "loader1"]
    for name in names:
        (tmp_path / name).unlink()
    killer = threading.Thread(target=kill_when, args=([tmp_path / n for n in names], tmp_path / "pid1"))
    killer.start()
    with pytest.raises(Interrupted, match=r"rank 1 \(stage 1\) was killed by SIGKILL"):
        launch(jobs.loading, (str(tmp_path),), world=2)
    killer.join(timeout=60)
    wait_until(lambda: not any(alive(int((tmp_path / n).read_text())) for n in names), 20, "both loaders have ended")


def kill_when(files, pid):
    wait_until(lambda: all(f.exists() and f.read_text() for f in files), 60, "both ranks load data")
    os.kill(int(pid.read_text()), signal.SIGKILL)


SCRIPT = """
import sys
from lpcompile.runtime.launch.launch import launch
from tests.distributed import jobs
from tests.distributed.deadline import started, wait_until
if __name__ == "__main__":
    launch(jobs.endless, (sys.argv[1],), world=2)
"""


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_the_one_that_launched_it(sig, tmp_path):
    """Ctrl-C goes to the whole group, as in a terminal; a kill to the launcher alone."""
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pids = [tmp_path / f"pid{rank}" for rank in range(2)]
    with started([sys.executable, file, tmp_path], env=environment, cwd=ROOT, stderr=subprocess.PIPE) as process:
        wait_until(lambda: all(p.exists() and p.read_text() for p in pids), 60, "both ranks have started", process)
        (os.killpg if sig == signal.SIGINT else os.kill)(process.pid, sig)
        assert process.wait(20) != 0
        wait_until(lambda: not any(alive(int(p.read_text())) for p in pids), 10, "both ranks have ended")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which signals are blocked")
def test_ctrl_c_does_not_reach_a_fork_server_that_is_importing():
    """It would print where in torch it was; the launcher ends it."""
    launch(jobs.everyone, world=2)
    status = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/status").read_text()
    blocked = int(next(line for line in status.splitlines() if line.startswith("SigBlk")).split()[1], 16)
    assert blocked >> (signal.SIGINT - 1) & 1


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ranks_have_a_core_each_and_loopback():
    found = launch(jobs.everyone, world=2)
    assert [f["rank"] for f in found] == [0, 1] and all(f["world"] == 2 for f in found)
    assert all(len(f["cores"]) == 1 and f["threads"] == 1 and f["interface"] == "lo" for f in found)
    if len(os.sched_getaffinity(0)) > 1:
        assert found[0]["cores"] != found[1]["cores"]
