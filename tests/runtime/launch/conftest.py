"""The time, set by hand."""

from __future__ import annotations

import pytest

from lpcompile.runtime.launch import watch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time as the watchdog sees it."""
    now = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    return now
