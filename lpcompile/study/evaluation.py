"""Evaluation of a model on samples in memory, and the record of a run that may fail: for `study` and `paper` alike."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from lpcompile.errors import LpError
from lpcompile.study.data import Pair, normalised
from lpcompile.study.networks import figures

EVALUATION_BATCH = 500


def first(pair: Pair, count: int) -> Pair:
    """The first `count` samples."""
    return pair[0][:count], pair[1][:count]


def evaluation_batches(pair: Pair) -> list[Pair]:
    parts = zip(*(torch.split(t, EVALUATION_BATCH) for t in pair), strict=True)
    return [(normalised(x), y) for x, y in parts]


@torch.no_grad()
def evaluate(model: nn.Module, pair: Pair) -> dict[str, float]:
    """Means over all samples, in evaluation mode, on the model's device."""
    model.eval()
    device = next(model.parameters()).device
    total: dict[str, float] = {}
    for x, y in evaluation_batches(pair):
        for name, value in figures(model(x.to(device)), y.to(device)).items():
            total[name] = total.get(name, 0.0) + float(value) * len(y) / len(pair[1])
    model.train()
    return total


def recorded(run: Callable[[], dict[str, Any]], ignored: tuple[str, ...] = ()) -> dict[str, Any]:
    """The record of a run on one core: what `run` returns or why it failed, its warnings and its time.

    ignored: words of warnings that are left out.
    """
    torch.set_num_threads(1)
    begin, cpu = time.perf_counter(), time.process_time()
    with listening() as said:
        try:
            found = run()
        except LpError as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        except Exception as error:  # the other runs go on; the next call runs this one again
            found = {"error": f"{type(error).__name__}: {error}", "crash": True}
    told = list(dict.fromkeys(line for line in said if not any(word in line for word in ignored)))
    seconds = {"seconds": round(time.perf_counter() - begin, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    return {**found, "said": told, **seconds}


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """Warnings of lpcompile, logged or raised, in order."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lpcompile")
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
        said += [str(w.message) for w in caught]
    finally:
        logger.removeHandler(handler)
