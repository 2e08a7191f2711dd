"""Exact pipelines as torch orders them, and how a batch is cut for them: no scheduler of our own.

`torch.distributed.pipelining` writes down what every rank does in turn when a schedule object is made. Nothing runs for
that and no process group is needed, so a stand-in takes the place of the stage.

>>> order("1f1b", K=2, micro=3)[0]
(('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('B', 2))
"""

from __future__ import annotations

import importlib
from collections import Counter
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

from lpcompile.errors import UsageError

SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "zb": "ScheduleInterleavedZeroBubble"}
PIPELINES = tuple(SCHEDULES)
FORWARD, BACKWARD, INPUT, WEIGHT = KINDS = ("F", "B", "I", "W")  # torch's own letters
SINCE = "2.9"  # the first torch whose schedules all have a table of what is done when

SAMPLES = 8  # of a micro-batch at least, where the batch allows it
MOST = 4  # at most so many micro-batches for each stage, where nobody says how many

Order = tuple[tuple[tuple[str, int], ...], ...]  # for each rank (kind, micro-batch), one after another


@lru_cache(maxsize=256)
def order(method: str, K: int, micro: int) -> Order:
    """What each rank does in turn, by torch's own schedule class, with one stage a rank."""
    name = SCHEDULES[method]
    stage: Any = SimpleNamespace(
        num_stages=K, group_size=K, group_rank=0, stage_index=0, is_first=True, is_last=K == 1, submod=None
    )
    try:
        make = getattr(importlib.import_module("torch.distributed.pipelining.schedules"), name)
        # ZB1P also plans its messages, which takes several times as long; ours are planned by the schedule.
        made = type(name, (make,), {"_prepare_schedule_with_comms": lambda *given, **named: None})
        table = made([stage] if name == SCHEDULES["zb"] else stage, micro).pipeline_order
        lines = tuple(_line(table[rank]) for rank in range(K))
    except ValueError as error:
        raise UsageError(
            f"{method!r} cannot run {micro} micro-batches on {K} stages: torch says {' '.join(str(error).split())!r}; "
            f"use a multiple of {K}"
        ) from None
    except (ImportError, AttributeError, TypeError, KeyError) as error:
        raise UsageError(_unknown(method, f"{type(error).__name__}: {error}")) from None
    whole = ({FORWARD: micro, BACKWARD: micro}, {FORWARD: micro, INPUT: micro, WEIGHT: micro})
    if any(Counter(kind for kind, _ in line) not in whole for line in lines):
        raise UsageError(_unknown(method, "its table does not have every micro-batch"))
    return lines


def _line(actions: Any) -> tuple[tuple[str, int], ...]:
    """Micro-batches are taken in their order. They are counted here, for torch's table of 1F1B (which its own engine
    does not read) begins to count the last rank's forwards at 1."""
    done: Counter[str] = Counter()
    line = []
    for kind in (action.computation_type.value for action in actions if action is not None):
        if kind in KINDS:
            line.append((kind, done[kind]))
            done[kind] += 1
    return tuple(line)


def _unknown(method: str, why: str) -> str:
    return (
        f"{method!r} follows torch's {SCHEDULES[method]}, which torch {torch.__version__} does not have in a form that "
        f"lpcompile knows ({why}); use torch {SINCE} or newer, or method='bp'"
    )


def micro_batches(method: str, K: int, batch: int | None, given: int | None = None, free: bool = True) -> int:
    """How many micro-batches a step has: those asked for, if they are equal parts of the batch and torch's schedule can
    run them; else `default_micro`. free: the model runs at other batch sizes than `batch`, its own.

    Only the batch that was planned for is held to this. The last one of an epoch may be smaller: its micro-batches then
    differ by a sample, each counts for its samples, and gradients are exact all the same.
    """
    if given is None:
        found = default_micro(method, K, batch, free)
        if found is None:
            needs = f"{method!r} on {K} stages needs {K} to {MOST * K} micro-batches, and"
            raise UsageError(
                f"{needs} a batch of {batch} has no such equal parts; use a batch that is a multiple of {K}, or pass "
                f"micro=..."
                if free
                else f"{needs} this model runs at a batch of {batch} only; let it take any batch size, or use a method "
                f"without micro-batches"
            )
        return found
    if given > 1 and not free:
        raise UsageError(
            f"micro={given}: this model runs at a batch of {batch} only, so it cannot be cut into micro-batches; "
            f"pass micro=1"
        )
    if batch is not None and batch % given:
        choices = [str(m) for m in range(1, batch + 1) if batch % m == 0 and _runs(method, K, m)]
        raise UsageError(
            f"micro={given} does not divide the batch of {batch}, and {method!r} cuts it into equal micro-batches; "
            f"use {'micro=' + ' or '.join(choices) if choices else 'another batch'}, "
            f"or compile for the batch that is trained with"
        )
    order(method, K, given)
    return given


def default_micro(method: str, K: int, batch: int | None, free: bool = True) -> int | None:
    """The most micro-batches up to two a stage that leave 8 samples in each; at least one a stage. None if no number of
    them will do. More of them make the bubble shorter, and each of them slower than its share."""
    if K == 1:
        return 1
    if not free:
        return 1 if _runs(method, K, 1) else None
    size = batch or 2 * K * SAMPLES
    fits = [m for m in range(K, MOST * K + 1) if size % m == 0 and _runs(method, K, m)]
    good = [m for m in fits if m <= 2 * K and size // m >= SAMPLES]
    return good[-1] if good else min(fits, default=None)


def _runs(method: str, K: int, micro: int) -> bool:
    """What torch's classes ask for when they are made: 1F1B a micro-batch for each stage, ZB1P whole rounds."""
    if method == "1f1b":
        return micro >= K
    return method != "zb" or micro % max(1, micro // K) == 0


def exposed(method: str, K: int, batch: int | None, free: bool = True) -> float:
    """The share of the other ranks' work that the slowest one waits for in a step: the bubble.

    All of it in `bp`, where ranks take turns; one micro-batch of it in a pipeline, which must fill and drain; a third
    of that in ZB1P, where weight gradients fill the rest (Qi et al. 2023, with forward, input and weight gradients of
    equal cost). None where ranks work on their own.
    """
    if method == "bp":
        return 1.0
    if method not in PIPELINES:
        return 0.0
    micro = default_micro(method, K, batch, free) or 2 * K
    return 1 / micro / (3 if method == "zb" else 1)
