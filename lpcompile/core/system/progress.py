"""Progress of long work: the share that is done, and the current step.

>>> shown = within(bar, 0.6, 0.9)     # a part of the job, on the bar of the whole
>>> shown(0.5, "measuring AuxNet 2 of 3")       # bar(0.75, "measuring AuxNet 2 of 3")
"""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

Progress = Callable[[float, str], None]  # the share done, 1 at the end; the current step


def silent(share: float, what: str) -> None:
    """The default: shows nothing."""


def within(progress: Progress, begin: float, end: float) -> Progress:
    """Map a part of the job to a part of the bar."""
    return lambda share, what: progress(begin + (end - begin) * share, what)


def rising(progress: Progress) -> Progress:
    """Work that is done again, as AuxNets for a better split, does not move the bar back."""
    most = 0.0

    def shown(share: float, what: str) -> None:
        nonlocal most
        most = max(most, share)
        progress(most, what)

    return shown


BAR = 30  # characters
SHOWN_AFTER = 2.0  # seconds: shorter work shows nothing
LINE_EVERY = 5.0  # seconds between lines, where there is no terminal
log = logging.getLogger("lpcompile")


class Shown:
    """Shows progress once work takes longer than two seconds: a bar on a terminal, else a line now and then.

    Lines go to the logger "lpcompile" where it is set up for them (level INFO), else to stderr.

    >>> with Shown("parallelize") as progress:
    ...     progress(0.5, "measuring units")
    """

    def __init__(self, name: str, out: Any = None, after: float | None = None, every: float = LINE_EVERY) -> None:
        self.name, self.out, self.every = name, out or sys.stderr, every
        after = SHOWN_AFTER if after is None else after
        self.live = bool(self.out.isatty())
        self.begin, self.next = time.monotonic(), time.monotonic() + after
        self.share, self.what, self.drawn, self.lock = 0.0, "", False, threading.Lock()
        self.timer = threading.Timer(after, self._show)  # for work that says nothing meanwhile
        self.timer.daemon = True

    def __enter__(self) -> Shown:
        self.timer.start()
        if self.live:
            self.warn: Any = warnings.showwarning
            setattr(warnings, "showwarning", self._warn)  # noqa: B010
        return self

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()
        if self.live:
            warnings.showwarning = self.warn
        with self.lock:
            self.next = float("inf")
            if self.drawn and self.live:
                print("\r\x1b[K", end="", file=self.out, flush=True)
            elif self.drawn:
                self._line(f"done after {time.monotonic() - self.begin:.0f} s")

    def __call__(self, share: float, what: str) -> None:
        self.share, self.what = share, what or self.what
        self._show()

    def _show(self) -> None:
        with self.lock:
            now = time.monotonic()
            if now < self.next:
                return
            self.drawn = True
            if self.live:
                full = int(BAR * min(1.0, self.share))
                text = f"{'█' * full}{'░' * (BAR - full)} {self.what}"[: shutil.get_terminal_size().columns - 1]
                print(f"\r\x1b[K{text}", end="", file=self.out, flush=True)
            else:
                self.next = now + self.every
                self._line(f"{self.what} ({100 * self.share:.0f} %)")

    def _warn(self, *warning: Any) -> None:
        """Clear a bar that is drawn, so that the warning begins on a line of its own."""
        with self.lock:
            if self.drawn:
                print("\r\x1b[K", end="", file=self.out, flush=True)
        self.warn(*warning)

    def _line(self, text: str) -> None:
        if log.isEnabledFor(logging.INFO):
            log.info("%s: %s", self.name, text)
        else:
            print(f"{self.name}: {text}", file=self.out, flush=True)
