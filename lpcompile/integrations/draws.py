"""Random numbers that a user's code draws before it calls the model: noise, mixup, the time of a diffusion step.

The code runs on all ranks for the arguments of the call, and once more on the last rank for the loss, which may look at
what was drawn. Such code draws the same numbers both times, for the whole batch: it is not cut into micro-batches.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from lpcompile.core.system.random_state import random_kept
from lpcompile.errors import UsageError
from lpcompile.runtime.engine.trainer import Trainer as Engine

SEED = "lpcompile seed"  # beside a batch on its way to the loss
WHAT = (
    "{what} draws random numbers before it calls the model, and its loss may look at them: batches are not cut into "
    "micro-batches, and ranks wait for each other; draw them in the data set or in collate_fn to train at full speed"
)


def state(device: torch.device) -> tuple[Any, ...]:
    """The random states of torch, Python and NumPy, to be compared."""
    numbers: Any = np.random.get_state()
    found = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return (*(t.numpy().tobytes() for t in found), random.getstate(), np.asarray(numbers[1]).tobytes(), numbers[2])


def new_seed() -> int:
    """A seed from torch's random state, which is the same on all ranks."""
    return int(torch.randint(2**31, ()))


@contextlib.contextmanager
def drawn_again(seed: int | None, device: torch.device) -> Iterator[None]:
    """Inside, code draws what it drew with this seed before; without one as ever."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []), random_kept(seed):
        yield


def arguments(run: Callable[[], dict[str, Any]], seed: int | None, device: torch.device) -> tuple[dict[str, Any], bool]:
    """The arguments with which `run` calls the model, and whether it draws random numbers before."""
    before = state(device)
    with drawn_again(seed, device):
        found = run()
    return found, seed is None and state(device) != before


def keep_whole(engine: Engine, method: Any, micro: int | None, what: str) -> None:
    """Do not cut batches from here on."""
    text = WHAT.format(what=what)
    if engine.plan.K == 1:
        return
    if micro not in (None, 1):
        raise UsageError(f"{text}; micro={micro} needs that")
    if engine.micro > 1:
        engine.switch(method, micro=1)
    engine.warn(text)
