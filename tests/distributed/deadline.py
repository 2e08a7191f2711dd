"""Waiting with a deadline: a test that hangs fails and says for what, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time


def wait_until(condition, seconds, what, process=None):
    """Poll a condition; fail after so many seconds, or as soon as `process`, which should bring it about, has ended."""
    end = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the process ended with {process.returncode} before {what}")
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.05)


@contextlib.contextmanager
def started(command, **options):
    """A process in a session of its own, of which nothing is left afterwards."""
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
