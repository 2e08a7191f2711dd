"""Progress of long work: the share that is done, and the current step.

>>> shown = within(bar, 0.6, 0.9)     # a part of the job, on the bar of the whole
>>> shown(0.5, "measuring AuxNet 2 of 3")       # bar(0.75, "measuring AuxNet 2 of 3")
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]  # the share done, 1 at the end; the current step


def silent(share: float, what: str) -> None:
    """The default: shows nothing."""


def within(progress: Progress, begin: float, end: float) -> Progress:
    """Map a part of the job to a part of the bar."""
    return lambda share, what: progress(begin + (end - begin) * share, what)
