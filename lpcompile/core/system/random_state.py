"""The random states of Python, NumPy and torch on the CPU: put back, or set, for a block of code."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def random_kept(seed: int | None = None) -> Iterator[None]:
    """Inside, all three begin at `seed`, if there is one; afterwards they are as they were."""
    import numpy as np

    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
