"""Emitted programs are compared to the bit."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def sums_in_one_order(one_thread: None) -> None:
    pass
