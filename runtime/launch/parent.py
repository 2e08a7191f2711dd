"""Questions of rank 0's process to the process that launched it, which answers them between its other work."""

from __future__ import annotations

from typing import Any

line: Any = None  # the connection to the launcher, in rank 0's process


def ask(question: Any) -> Any:
    """The launcher's answer; it must have been launched with `answer`."""
    assert line is not None
    line.send(question)
    return line.recv()
