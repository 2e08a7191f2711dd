"""The number of micro-batches of a step: the method's default, or the one whose measured step is shortest.

More micro-batches leave less idle time and fresher gradients, but each runs less efficiently than a larger one, by how
much depends on model and machine. So where a method has a choice (`Method.micro_choices`) every size is timed, and the
step is predicted from it: M micro-batches, and what the slowest rank waits for. Where gradients are late by (K-1-r)/M
of a step, more micro-batches are taken as long as the step grows by no more than FRESHER: they make gradients fresher.
"""

from __future__ import annotations

import torch

from lpcompile.core.method import BatchFacts, Method
from lpcompile.core.system.progress import within
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.explain import has_meta
from lpcompile.passes.graph.batch import batch_size
from lpcompile.passes.profile.flops import flops_profile
from lpcompile.passes.profile.micro_time import micro_times
from lpcompile.passes.split.units import Unit
from lpcompile.planning.interaction import interacts
from lpcompile.planning.options import Options

FRESHER = 1.03  # step of a method with late gradients over the shortest one, for more micro-batches


def batch_facts(captured: Captured, units: list[Unit], tensors: list[torch.Tensor], options: Options) -> BatchFacts:
    """What the choice depends on before anything is measured."""
    K = options.K if isinstance(options.K, int) else 2
    saved = sum(u.saved_bytes for u in flops_profile(captured, units).units)
    return BatchFacts(K, batch_size(tensors), captured._lp.batch_free, saved, norm=interacts(captured, tensors))


def choose_micro(captured: Captured, units: list[Unit], tensors: list[torch.Tensor], options: Options) -> int:
    """Micro-batches a step for the planned method."""
    facts, method = batch_facts(captured, units, tensors, options), options.traits
    choices = method.micro_choices(facts)
    if options.cost != "measured" or len(choices) < 2 or has_meta(captured._lp.model) or not facts.batch:
        return method.default_micro(facts) or 1
    options.progress(0.03, f"measuring micro-batches, {', '.join(map(str, choices))} a step")
    sizes = {M: -(-facts.batch // M) for M in choices}
    times = micro_times(
        captured,
        units,
        tensors,
        sorted(set(sizes.values())),
        threads=options.threads,
        cache=options.cache,
        seconds=options.measure_seconds,
        progress=within(options.progress, 0.0, 0.05),
    )
    steps = {M: predicted(method, facts.K, M, times[sizes[M]] * _evened(method, facts.batch, M)) for M in choices}
    longest = min(steps.values()) * (FRESHER if method.delayed else 1.0)
    return max((M for M in choices if steps[M] <= longest), key=lambda M: M if method.delayed else -M)


def _evened(method: Method, batch: int, M: int) -> float:
    """Where a batch is not divided evenly, later micro-batches have fewer samples than the first: the mean of them over
    the first. Ranks of a method with late gradients take turns in slots, which last as long as their largest part."""
    return 1.0 if method.delayed else batch / (M * -(-batch // M))


def predicted(method: Method, K: int, M: int, ms: float) -> float:
    """ms of a step whose micro-batches take `ms` undivided: a rank's share of them, and its waiting for the others.

    Half a micro-batch is held in reserve, for messages and ranks that are not quite equal."""
    waiting = (method.bubble(K, M) + method.bubble(K, max(1, M - 1))) / 2
    return M * ms * (1 + (K - 1) * waiting) / K
