"""Measured time of an AuxNet relative to its stage, and calibration of the budget to a requested share."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lpcompile.core.system.progress import Progress, silent
from lpcompile.passes.auxnet.derive import AuxNet
from lpcompile.passes.graph.module import TwoModeModule
from lpcompile.passes.graph.untouched import untouched
from lpcompile.passes.profile.measure import Clock, drop_gradients
from lpcompile.passes.split.split import Stage, stage_io

MAX_DERIVATIONS = 4
CLOSE_ENOUGH = (0.94, 1.05)  # measured share over requested share
REPEATS, MIN_REPEATS = 7, 2  # timed steps
CALIBRATION_SECONDS = 3.0  # for all AuxNets of a model, about
StepTime = tuple[float, float]  # ms of forward and backward


@dataclass(frozen=True)
class Effort:
    """How often each stage and its AuxNet are timed, and where progress is reported."""

    repeats: int = REPEATS
    progress: Progress = silent

    @property
    def slow(self) -> bool:
        """Whether steps are so long that only the minimum is run."""
        return self.repeats == MIN_REPEATS

    @property
    def rounds(self) -> int:
        """Maximum number of derivations."""
        return 2 if self.slow else MAX_DERIVATIONS


def effort_for(step: float, progress: Progress = silent, seconds: float = CALIBRATION_SECONDS) -> Effort:
    """The effort that fits `seconds` if a step of all stages takes `step` ms. (Timing an AuxNet adds a third
    to timing its stage, and every other AuxNet is derived twice.)"""
    often = int(seconds * 1e3 / (2 * step)) if step else REPEATS
    return Effort(min(REPEATS, max(MIN_REPEATS, often)), progress)


@dataclass(frozen=True)
class MeasuredShare:
    """Median times of an AuxNet relative to its stage's, and the stage's own times by step."""

    forward: float
    backward: float
    total: float
    stage: tuple[StepTime, ...] = ()


def boundary_inputs(stages: Sequence[Stage], tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The arguments of each stage when the stages run in sequence."""
    found, lam = [], list[torch.Tensor]()
    with torch.no_grad():
        for stage in stages:
            io = stage_io(stage)
            found.append([*lam, *(tensors[i] for i in io.inputs)])
            result = stage(*found[-1])
            values = result if isinstance(result, tuple) else (result,)
            lam = [v.detach().clone() for v in values[: len(io.boundary)]]
    return found


def measure_share(
    stage: Stage,
    aux: AuxNet,
    stage_inputs: Sequence[torch.Tensor],
    aux_inputs: Sequence[torch.Tensor],
    repeats: int = REPEATS,
    known: tuple[StepTime, ...] = (),
    dtype: str = "",
) -> MeasuredShare:
    """Time the stage and the AuxNet in turn, so that noise affects both alike.

    known: earlier times of the stage, which is then not run again. With fewer than REPEATS steps the stage, which has
    just been profiled, gets no warm-up. dtype: the AuxNet's autocast dtype.
    """
    clock = Clock(next((p.device for p in stage.parameters()), torch.device("cpu")))
    own, others = list(known), list[StepTime]()
    with untouched(stage), untouched(aux), torch.enable_grad():
        stage._lp_use_mode(True)
        for turn in range(repeats + 1):
            if not known and (turn or repeats == REPEATS):
                own.append(_step(stage, stage_inputs, clock, gradients=True))
            others += [_step(aux, aux_inputs, clock, gradients=False, dtype=dtype) for _ in range(3 if turn else 1)]
    own = own[1:] if repeats == REPEATS and not known else own
    medians = [[statistics.median(t[i] for t in times) for i in (0, 1)] for times in (own, others[1:])]
    (forward, backward), (aux_forward, aux_backward) = medians
    return MeasuredShare(
        aux_forward / (forward or 1.0),
        aux_backward / (backward or 1.0),
        (aux_forward + aux_backward) / ((forward + backward) or 1.0),
        tuple(own),
    )


def _step(
    module: TwoModeModule, inputs: Sequence[torch.Tensor], clock: Clock, gradients: bool, dtype: str = ""
) -> StepTime:
    """Run one forward and backward. With `gradients` (a stage), backward includes the inputs' gradients."""
    leaves = [t.detach().requires_grad_(gradients and t.is_floating_point()) for t in inputs]
    start = clock.stamp()
    with torch.autocast(inputs[0].device.type, getattr(torch, dtype)) if dtype else contextlib.nullcontext():
        result = module(*leaves)
    middle = clock.stamp()
    values = [v for v in (result if isinstance(result, tuple) else (result,)) if v.requires_grad]
    ones = [torch.ones_like(v) for v in values]
    begin = clock.stamp()
    if values:
        torch.autograd.backward(values, ones)
    end = clock.stamp()
    drop_gradients(module)
    return clock.ms(start, middle), clock.ms(begin, end)


def calibrate(
    budget: float,
    make: Callable[[float], AuxNet],
    measure: Callable[[AuxNet], MeasuredShare],
    rounds: int = MAX_DERIVATIONS,
) -> tuple[AuxNet, float, MeasuredShare]:
    """Derive, measure and correct the budget until the measured share is close to the requested one.

    Returns the best AuxNet, the budget it was derived with, and its measured share.
    """
    asked = budget
    tried: list[tuple[float, AuxNet, float, MeasuredShare]] = []
    for _ in range(rounds):
        aux = make(asked)
        if any(_same(aux, before) for _, before, _, _ in tried):
            break
        share = measure(aux)
        ratio = share.total / budget if budget else 1.0
        tried.append((_distance(ratio), aux, asked, share))
        if CLOSE_ENOUGH[0] <= ratio <= CLOSE_ENOUGH[1]:
            break
        asked = min(1.0, asked * min(4.0, max(0.25, 1 / max(ratio, 1e-6))))
    _, aux, asked, share = min(tried, key=lambda t: t[0])
    return aux, asked, share


def _distance(ratio: float) -> float:
    """Distance from the budget; above it counts three times."""
    return 3 * (ratio - 1) if ratio > 1 else 1 - ratio


def _same(a: AuxNet, b: AuxNet) -> bool:
    return (a.record.kept, a.record.thinned, a.record.dropped) == (b.record.kept, b.record.thinned, b.record.dropped)
