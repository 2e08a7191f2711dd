"""What a plan's method means for training, in one sentence: gradients, memory, extra parameters, and why it is taken.

>>> choice(plan)        # method="auto", K = 4, a batch of 128
"'zbh2', 7 micro-batches a step: plain training's gradients, at most 5.7 MiB a rank; method='auto' takes it because no
optimizer, learning rate or schedule can change its accuracy; no rank waits for another"
"""

from __future__ import annotations

from lpcompile.core.method import BatchFacts, Method
from lpcompile.core.micro_batches import micro_of
from lpcompile.core.plan import Plan
from lpcompile.core.tables import percent, size
from lpcompile.planning.rank_memory import rank_memory
from lpcompile.runtime.engine.schedules import default_schedule
from lpcompile.runtime.methods import CHOSEN, get_method
from lpcompile.runtime.methods.zero_bubble import MIN_SAMPLES, NORM_SAMPLES


def choice(plan: Plan) -> str:
    """Nothing for a single stage."""
    if plan.K == 1:
        return ""
    method = get_method(plan.method)
    micro = micro_of(plan, method) or 1
    cut = f"{micro} micro-batches a step" if micro > 1 else "the whole batch at once"
    extra = sum(b.aux.parameters for b in plan.boundaries if b.aux is not None)
    networks = f", {extra:,} extra parameters in {'heads' if plan.heads else 'AuxNets'}" if extra else ""
    text = f"{plan.method!r}, {cut}: {_gradients(plan, method, micro)}, at most {size(_memory(plan))} a rank{networks}"
    if plan.recipe:
        return f"{text}; this is the longest phase of {plan.recipe}, and predictions below are for it alone"
    return text + (
        why_default(plan.world, micro, plan.batch, plan.batch_norm, plan.batch_free) if plan.method == CHOSEN else ""
    )


def why_default(K: int, micro: int, batch: int | None, norm: bool, free: bool = True) -> str:
    """Why method="auto" takes what it takes, and what would make it faster."""
    method = get_method(CHOSEN)
    text = "; method='auto' takes it because no optimizer, learning rate or schedule can change its accuracy; "
    waiting = method.bubble(K, micro)
    if not waiting:
        return text + "no rank waits for another"
    share = (K - 1) * waiting / (1 + (K - 1) * waiting)
    text += f"ranks wait for {percent(share)} of a step, "
    if not free:
        return text + "for this model takes its batches whole and they cannot be cut into micro-batches (see the notes)"
    if max(method.micro_choices(BatchFacts(K, batch, norm=norm)), default=1) > micro:
        return text + "and more, smaller micro-batches would take longer"
    samples = NORM_SAMPLES if norm else MIN_SAMPLES
    each = f"{samples} samples in each micro-batch, for BatchNorm or what is like it"
    reason = f" ({each}; a larger micro=... takes fewer)" if norm else ""
    return text + f"and for less with a larger batch, up to {(2 * K - 1) * samples}{reason}"


def _memory(plan: Plan) -> float:
    """Bytes of the largest rank. Late gradients keep the graphs of more than one batch, all else at most of one."""
    most: float = max(sum(plan.stages[s].memory_bytes for s in plan.stages_of(r)) for r in range(plan.world))
    schedule = default_schedule(plan) if get_method(plan.method).delayed else None
    return max(most, *rank_memory(plan, schedule)) if schedule is not None else most


def _gradients(plan: Plan, method: Method, micro: int) -> str:
    if method.exact:
        return "plain training's gradients"
    if method.delayed:
        late = ", ".join(f"{(plan.K - 1 - rank) / micro:.2g}" for rank in range(plan.K))
        return f"gradients late by {late} steps on ranks 0 to {plan.K - 1}, which can cost accuracy"
    if method.heads:
        return "a loss of its own for every stage, which can cost accuracy"
    return f"stages start from {'predicted' if method.aux == 'auxnet' else 'stored'} λ, which can cost accuracy"
