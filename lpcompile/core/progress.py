"""What is shown while things are measured: which share of it is done, and what is being done now.

>>> shown = within(bar, 0.6, 0.9)     # of the second part of a job, on the bar of the whole
>>> shown(0.5, "measuring AuxNet 2 of 3")       # bar(0.75, "measuring AuxNet 2 of 3")
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]  # the share done; 1 is the end, when a bar goes away


def silent(share: float, what: str) -> None:
    """For nobody to see."""


def within(progress: Progress, begin: float, end: float) -> Progress:
    """A part of the job has this part of the bar."""
    return lambda share, what: progress(begin + (end - begin) * share, what)
