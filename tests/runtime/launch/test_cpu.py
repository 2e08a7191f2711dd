"""What a process gets of a CPU: one that waits in the queue is told from one that sleeps or is stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lpcompile.runtime.launch import cpu
from lpcompile.runtime.launch.cpu import Queue
from lpcompile.runtime.launch.identity import identity
from tests.distributed.deadline import started, wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell")
SPIN = "while True: pass"


def shares(processes, seconds=1.0):
    queues = [Queue(identity(p.pid)) for p in processes]
    for queue in queues:
        queue.share(0.0)
    begin = time.monotonic()
    time.sleep(seconds)
    return [queue.share(time.monotonic() - begin) for queue in queues], time.monotonic() - begin


def test_two_processes_on_one_core_wait_for_each_other_and_those_that_sleep_do_not():
    core = str(min(os.sched_getaffinity(0)))
    pin = f"import os; os.sched_setaffinity(0, {{{core}}})\n"
    with (
        started([sys.executable, "-c", pin + SPIN]) as one, started([sys.executable, "-c", pin + SPIN]) as two,
        started(["sleep", "60"]) as asleep, started(["sh", "-c", "while true; do true; done"]) as stopped,
    ):  # fmt: skip
        os.kill(stopped.pid, signal.SIGSTOP)
        wait_until(lambda: cpu._stat(Path(f"/proc/{stopped.pid}"))[0] == "T", 10, "it is stopped")
        wait_until(lambda: Path(f"/proc/{asleep.pid}/comm").read_text() == "sleep\n", 10, "it sleeps")
        wait_until(lambda: all(cpu._stat(Path(f"/proc/{p.pid}"))[0] == "R" for p in (one, two)), 30, "both run")
        (first, second, sleeper, halted), seconds = shares([one, two, asleep, stopped])
    assert first.waited + second.waited > 0.5 * seconds
    assert sleeper.waited + halted.waited + halted.ran < 0.2 * seconds


def test_processes_that_load_data_count_with_their_rank():
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SPIN!r}])"
    before = cpu.of_children()
    with started([sys.executable, "-c", code], stdout=subprocess.DEVNULL) as parent:
        wait_until(lambda: len(cpu.children(parent.pid)) == 1, 30, "it has a child")
        wait_until(lambda: cpu.of_children() > before + 0.2, 60, "the child's child has used a CPU")
        (share,), seconds = shares([parent])
    assert share.ran + share.waited > 0.5 * seconds
