"""Fixtures that several rooms use, and the order of the files."""

from __future__ import annotations

import functools
import gc
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

LONG = re.compile(
    r"subprocess|\blaunch\.|\.fit\(|started_once|hypothesis|\bfresh_python\b|\bbrowser\b|tests.properties|\"(train|bench|compare|study)\""
)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts its background jobs; tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Workers share the cores; threads of one that wait for those of another spin.
torch.set_num_threads(max(1, torch.get_num_threads() // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that at the end no worker is left alone with one of them (`--no-loadscope-reorder`)."""
    items.sort(key=lambda item: not takes_long(item.path))


@functools.cache
def takes_long(file: Path) -> bool:
    """Whether tests of a file start processes or try many examples, by its text."""
    return LONG.search(file.read_text()) is not None


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For results that are compared to the bit: with one thread, sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def few_objects() -> Iterator[None]:
    """Hides all objects that are there from the garbage collector, for tests that ask it what they leave behind."""
    gc.freeze()
    yield
    gc.unfreeze()
