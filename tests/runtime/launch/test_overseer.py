"""The watchdog under torchrun: whom a rank names, of ranks that only exist in a store, in seconds that are counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from lpcompile.errors import TrainingError
from lpcompile.runtime.launch import identity as identities
from lpcompile.runtime.launch import launch
from lpcompile.runtime.launch import overseer as overseers
from lpcompile.runtime.launch.board import Board
from lpcompile.runtime.launch.identity import identity, is_stopped, sibling
from lpcompile.runtime.launch.overseer import ENDED, FAILED, PREFIX, Overseer
from tests.distributed.deadline import started, wait_until
from tests.runtime.ranks import free_port

TIMEOUT = 6.0


@pytest.fixture
def overseer(monkeypatch, clock):
    """Rank 0 of two, which waits for the other one; `said` is what it reports."""
    monkeypatch.setattr(overseers, "heartbeat", lambda *_: None)
    monkeypatch.setattr(overseers.board, "own", None)
    monkeypatch.setattr(overseers.atexit, "register", lambda _: None)
    made = Overseer(dist.HashStore(), 0, 2, TIMEOUT)
    made.board.note(3, "wait X1")
    made.said = []
    monkeypatch.setattr(made, "report", lambda *found: made.said.append((clock[0], *found)))
    return made


def other(overseer, step, text):
    board = Board()
    board.note(step, text)
    board.beat(1, 0.0)
    overseer.store.set(f"{PREFIX} 1", board.map[:])
    overseer.store.set(f"{PREFIX} process 1", json.dumps(None))
    return board


def beats(overseer, clock, seconds=20):
    for second in range(1, seconds):
        clock[0] = float(second)
        overseer.board.beat(second, 0.0)
        overseer.beat()
        if overseer.said:
            return overseer.said[0]
    return None


def test_a_rank_without_a_heartbeat_is_reported_by_the_other_one(overseer, clock):
    other(overseer, 3, "forward")
    second, rank, doing, ended, speaker = beats(overseer, clock)
    assert (rank, ended, speaker, doing.text) == (1, False, 0, "forward") and TIMEOUT < second <= TIMEOUT + 3


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory that other processes can open")
def test_a_rank_of_this_machine_is_read_as_it_is_now_and_not_as_it_was_published(overseer):
    board = other(overseer, 3, "forward")
    overseer.store.set(f"{PREFIX} process 1", json.dumps(identity()))
    overseer.store.set(f"{PREFIX} address 1", board.address)
    board.note(4, "backward")
    assert str(overseer._read(1)) == "step 4, instruction 'backward'"


def test_a_rank_that_has_ended_is_named_and_not_the_one_that_waits_for_it(overseer, clock):
    other(overseer, ENDED, "(at the end)")
    _, rank, _, ended, speaker = beats(overseer, clock)
    assert (rank, ended, speaker) == (1, True, 0)


def test_while_a_rank_ends_with_an_exception_nobody_is_named(overseer, clock, monkeypatch):
    ends = []
    monkeypatch.setattr(overseers.os, "_exit", ends.append)
    other(overseer, FAILED, "(at the end)")
    assert beats(overseer, clock) is None and set(ends) == {1}


@pytest.mark.parametrize(("step", "said"), [
    (ENDED, "rank 1 (stage 1) ended, and others wait for it (step 3, instruction 'wait X1')"), (FAILED, ""), (2, ""),
])  # fmt: skip
def test_a_rank_that_lost_one_without_an_error_says_which_one_that_was(overseer, capsys, step, said):
    other(overseer, step, "forward")
    overseer.name_gone(overseer.board.read())
    found = capsys.readouterr().err
    assert (said in found) if said else not found


def test_a_rank_that_is_stopped_before_it_joins_is_reported_and_one_that_computes_is_not(overseer, clock, monkeypatch):
    monkeypatch.setattr(identities.os, "getppid", os.getpid)  # this test is the launcher
    overseer.parent = os.getpid()
    with started(["sleep", "60"], env={**os.environ, "RANK": "1"}) as process:
        wait_until(lambda: sibling(1) == identity(process.pid) is not None, 10, "it has its environment")
        assert sibling(7) is None and not is_stopped(sibling(1))
        assert beats(overseer, clock) is None
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(sibling(1)), 10, "it is stopped")
        clock[0] = 0.0
        _, rank, doing, ended, speaker = beats(overseer, clock)
        assert (rank, ended, speaker, str(doing)) == (1, False, 0, "step 0, starting")


SCRIPT = """
import sys, time
import torch.distributed as dist
from lpcompile.runtime.launch.overseer import Overseer
made = Overseer(dist.HashStore(), 0, 1, 60.0)
class Stuck:
    def __del__(self, sleep=time.sleep):
        sleep(300)
stuck = Stuck()
raise ValueError("an accident")
"""


def test_a_process_with_an_exception_ends_although_its_destructors_do_not_and_tells_torchrun_why(tmp_path):
    file = tmp_path / "error.json"
    env = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(file)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 1 and "ValueError: an accident" in done.stderr
    failure = ProcessFailure(0, 1, 1, str(file))
    assert failure.message["message"] == "builtins.ValueError: an accident" and failure.timestamp <= time.time()


def test_a_lost_connection_is_told_with_what_the_rank_did_then(overseer, capsys, monkeypatch):
    ends = []
    monkeypatch.setattr(overseers.os, "_exit", ends.append)
    monkeypatch.setattr(overseers.time, "sleep", lambda _: None)
    monkeypatch.setattr(overseers.atexit, "_run_exitfuncs", lambda: None)
    monkeypatch.setattr(overseers.signal, "setitimer", lambda *_: None)
    monkeypatch.setattr(overseers.signal, "signal", lambda *_: None)
    other(overseer, ENDED, "(at the end)")
    overseer.error = RuntimeError("Connection closed by peer")
    overseer.end()
    assert ends == [1] and "rank 1 (stage 1) ended, and others wait for it (step 3, instr" in capsys.readouterr().err


def test_a_process_ends_only_when_its_heartbeat_has_left_the_store(overseer):
    """Python ends a thread that comes back from C++ during its shutdown, which C++ takes for a crash."""
    inside, go_on, over = threading.Event(), threading.Event(), []
    store = SimpleNamespace(set=lambda *_: (inside.set(), go_on.wait(30)), check=lambda _: False)
    overseer.store = store
    beating = threading.Thread(target=overseer.beat)
    beating.start()
    assert inside.wait(30)
    ending = threading.Thread(target=lambda: (overseer.end(), over.append(beating.is_alive())))
    ending.start()
    ending.join(0.1)
    assert ending.is_alive()
    go_on.set()
    ending.join(30)
    beating.join(30)
    assert over  # and later beats leave the store alone
    store.set = None
    overseer.beat()


def test_a_process_whose_launcher_ended_before_it_joined_ends_within_the_timeout(monkeypatch):
    given = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TrainingError, match=r"the store at 127.0.0.1:\d+ does not answer; has the launcher ended?"):
        launch._torchruns_store(1, 0.5)
