"""Micro-batches: how many a step has, and the order in which exact pipelines run them.

`torch.distributed.pipelining` writes a table of every rank's actions when a schedule object is made. That runs nothing
and needs no process group, so a stand-in takes the place of the stage.

>>> order(get_method("1f1b"), K=2, micro=3)[0]          # of rank 0: kind, micro-batch and stage
(('F', 0, 0), ('F', 1, 0), ('B', 0, 0), ('F', 2, 0), ('B', 1, 0), ('B', 2, 0))
"""

from __future__ import annotations

import importlib
from collections import Counter, defaultdict
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import torch

from lpcompile.core.method import BatchFacts, Method, Order
from lpcompile.core.plan import Plan
from lpcompile.errors import UsageError

FORWARD, BACKWARD, INPUT, WEIGHT = ("F", "B", "I", "W")  # torch's own letters
SINCE = "2.9"  # the first torch whose schedule classes all have a table of actions

MIN_SAMPLES = 8  # preferred lower limit for the samples of a micro-batch
MAX_PER_STAGE = 4  # upper limit for the default number of micro-batches, per stage


@lru_cache(maxsize=256)
def order(method: Method, K: int, micro: int) -> Order:
    """Each rank's actions in order: the method's own, or those of torch's schedule class."""
    if method.own_order is not None:
        return method.own_order(K, micro)
    name, ranks = method.torch_schedule, method.ranks(K) or tuple(range(K))
    if K == 1 and method.chunks > 1:  # one stage, which torch's class would not take
        return (tuple((kind, slot, 0) for slot in range(micro) for kind in (FORWARD, BACKWARD)),)
    stages: list[Any] = [
        SimpleNamespace(
            num_stages=len(ranks), group_size=K, group_rank=0, stage_index=s, is_first=s == 0,
            is_last=s == len(ranks) - 1, submod=None,
        )
        for s, rank in enumerate(ranks)
        if rank == 0
    ]  # fmt: skip
    try:
        schedules = importlib.import_module("torch.distributed.pipelining.schedules")
        make = getattr(schedules, name)
        # ZB1P also plans its messages, which takes several times as long; ours are planned by the schedule.
        made = type(name, (make,), {"_prepare_schedule_with_comms": lambda *given, **named: None})
        table = made(stages if issubclass(make, schedules.PipelineScheduleMulti) else stages[0], micro).pipeline_order
        lines = tuple(_line(table[rank]) for rank in range(K))
    except ValueError as error:
        raise UsageError(
            f"{method.name!r} cannot run {micro} micro-batches on {K} stages: "
            f"torch says {' '.join(str(error).split())!r}; use a multiple of {K}"
        ) from None
    except (ImportError, AttributeError, TypeError, KeyError) as error:
        raise UsageError(_unknown(method, f"{type(error).__name__}: {error}")) from None
    each = [(stage, slot) for stage in range(len(ranks)) for slot in range(micro)]
    if any(_done(lines, *kinds) != each for kinds in ((FORWARD,), (BACKWARD, INPUT), (BACKWARD, WEIGHT))):
        raise UsageError(_unknown(method, "its table does not have every micro-batch"))
    return lines


def _line(actions: Any) -> tuple[tuple[str, int, int], ...]:
    """One rank's actions; two that torch lets overlap follow each other. Micro-batches of a stage run in ascending
    order and are counted here, since torch's table of 1F1B (which its own engine does not read) counts the last rank's
    forwards from 1. A backward in two parts takes its turn with its first one."""
    done: Counter[tuple[str, int]] = Counter()
    left: dict[int, list[int]] = defaultdict(list)  # micro-batches whose weight gradients are put off
    line = []
    for action in (part for one in actions if one is not None for part in one.sub_actions or (one,)):
        kind, stage = action.computation_type.value, action.stage_index
        if kind in (FORWARD, BACKWARD, INPUT):
            at = (FORWARD if kind == FORWARD else BACKWARD, stage)
            line.append((kind, done[at], stage))
            if kind == INPUT:
                left[stage].append(done[at])
            done[at] += 1
        elif kind == WEIGHT:
            line.append((kind, left[stage].pop(0), stage))
    return tuple(line)


def _done(lines: Order, *kinds: str) -> list[tuple[int, int]]:
    """(stage, micro-batch) of all actions of these kinds."""
    return sorted((stage, slot) for line in lines for kind, slot, stage in line if kind in kinds)


def _unknown(method: Method, why: str) -> str:
    return (
        f"{method.name!r} follows torch's {method.torch_schedule}, which torch {torch.__version__} does not have in a "
        f"form that lpcompile knows ({why}); use torch {SINCE} or newer, or method='bp'"
    )


def checked_micro(method: Method, K: int, batch: int | None, given: int | None = None, free: bool = True) -> int:
    """Number of micro-batches of a pipeline: `given` if it cuts the batch into equal parts that torch's schedule can
    run, else the default. free: the model runs at other batch sizes than `batch`.

    Only the planned batch size is held to this. The last batch of an epoch may be smaller: its micro-batches then
    differ by a sample, each is weighted by its samples, and gradients are exact all the same.
    """
    if given is None:
        found = default_micro(method, K, batch, free)
        if found is None:
            needs = f"{method.name!r} on {K} stages needs {K} to {MAX_PER_STAGE * K} micro-batches, and"
            raise UsageError(
                f"{needs} a batch of {batch} has no such equal parts; use a batch that is a multiple of {K}, or pass "
                f"micro=..."
                if free
                else f"{needs} this model takes its batch of {batch} whole; let it take any batch size, or use a "
                f"method without micro-batches"
            )
        return found
    if given > 1 and not free:
        raise UsageError(_one_size(given, batch))
    if batch is not None and batch % given:
        choices = [str(m) for m in range(1, batch + 1) if batch % m == 0 and method.accepts_micro(K, m)]
        raise UsageError(
            f"micro={given} does not divide the batch of {batch}, and {method.name!r} cuts it into equal "
            f"micro-batches; use {'micro=' + ' or '.join(choices) if choices else 'another batch'}, "
            f"or compile for the batch that is trained with"
        )
    order(method, K, given)
    return given


def _one_size(given: int, batch: int | None) -> str:
    return (
        f"micro={given}: this model takes its batch of {batch} whole, so it is not cut into micro-batches; pass micro=1"
    )


def default_micro(method: Method, K: int, batch: int | None, free: bool = True) -> int | None:
    """The largest number up to two micro-batches per stage that leaves 8 samples in each, at least one per stage; None
    if no number fits. More micro-batches shorten the bubble, and each runs slower than its share."""
    if K == 1:
        return 1
    if not free:
        return 1 if method.accepts_micro(K, 1) else None
    size = batch or 2 * K * MIN_SAMPLES
    fits = [m for m in range(K, MAX_PER_STAGE * K + 1) if size % m == 0 and method.accepts_micro(K, m)]
    good = [m for m in fits if m <= 2 * K and size // m >= MIN_SAMPLES]
    return good[-1] if good else min(fits, default=None)


def micro_of(plan: Plan, method: Method, stash: str = "all") -> int | None:
    """The method's default; None if a pipeline cannot cut the plan's batch."""
    if plan.micro and method.name == plan.method:
        return plan.micro
    saved = sum(u.saved_bytes for u in plan.units)
    return method.default_micro(BatchFacts(plan.world, plan.batch, plan.batch_free, saved, stash, plan.batch_norm))


def micro_for(plan: Plan, method: Method, given: int | None = None, stash: str = "all") -> int:
    """`given`, checked, or the default; UsageError if a pipeline cannot run it."""
    if method.torch_schedule:
        return checked_micro(method, plan.world, plan.batch, given, plan.batch_free)
    if given and given > 1 and not plan.batch_free:
        raise UsageError(_one_size(given, plan.batch))
    return given or micro_of(plan, method, stash) or 1


def bubble_of(method: Method, facts: BatchFacts, micro: int = 0) -> float:
    """Share of the other ranks' work that the slowest rank waits for in a step. micro: 0 for the default number."""
    return method.bubble(facts.K, micro or method.default_micro(facts) or 2 * facts.K)
