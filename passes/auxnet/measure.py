"""How long an AuxNet takes beside its stage, and the budget that makes the measured share what was asked for."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from lpcompile.core.progress import Progress, silent
from lpcompile.passes.auxnet.derive import AuxNet
from lpcompile.passes.graph.module import TwoModeModule
from lpcompile.passes.graph.untouched import untouched
from lpcompile.passes.profile.measure import Clock
from lpcompile.passes.split.split import Stage, stage_io

ROUNDS = 4  # derivations at most
CLOSE = (0.94, 1.05)  # measured share over the one asked for: close enough
REPEATS, FEWEST = 7, 2
SECONDS = 6.0  # for all AuxNets of a model, about
Times = tuple[float, float]  # ms of forward and backward


@dataclass(frozen=True)
class Effort:
    """How often each stage and its AuxNet are run, and what is shown meanwhile."""

    repeats: int = REPEATS
    progress: Progress = silent

    @property
    def slow(self) -> bool:
        """Whether steps are so long that every one of them counts."""
        return self.repeats == FEWEST

    @property
    def rounds(self) -> int:
        """Derivations at most."""
        return 2 if self.slow else ROUNDS


def effort_for(step: float, progress: Progress = silent) -> Effort:
    """What can be afforded where a step of all stages takes so many ms: AuxNets take a third as long as their stages,
    and every other one is made twice."""
    often = int(SECONDS * 1e3 / (2 * step)) if step else REPEATS
    return Effort(min(REPEATS, max(FEWEST, often)), progress)


@dataclass(frozen=True)
class Share:
    """Medians of forward and backward, as a share of the stage's; and the stage's own times, one for each step."""

    forward: float
    backward: float
    total: float
    stage: tuple[Times, ...] = ()


def boundary_inputs(stages: Sequence[Stage], tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """What each stage is called with when the stages run one after another."""
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
    known: tuple[Times, ...] = (),
    dtype: str = "",
) -> Share:
    """Steps of the stage and of the AuxNet in turn, so that noise falls on both alike.

    known: times of the stage from before, which is then not run again. Where steps are so long that they are not
    repeated often, a stage that has just been profiled needs no warm-up. dtype: of the AuxNet's autocast.
    """
    clock = Clock(next((p.device for p in stage.parameters()), torch.device("cpu")))
    own, others = list(known), list[Times]()
    with untouched(stage), untouched(aux), torch.enable_grad():
        stage._lp_use_mode(True)
        for turn in range(repeats + 1):
            if not known and (turn or repeats == REPEATS):
                own.append(_step(stage, stage_inputs, clock, gradients=True))
            others += [_step(aux, aux_inputs, clock, gradients=False, dtype=dtype) for _ in range(3 if turn else 1)]
    own = own[1:] if repeats == REPEATS and not known else own
    medians = [[statistics.median(t[i] for t in times) for i in (0, 1)] for times in (own, others[1:])]
    (forward, backward), (aux_forward, aux_backward) = medians
    return Share(
        aux_forward / (forward or 1.0),
        aux_backward / (backward or 1.0),
        (aux_forward + aux_backward) / ((forward + backward) or 1.0),
        tuple(own),
    )


def _step(
    module: TwoModeModule, inputs: Sequence[torch.Tensor], clock: Clock, gradients: bool, dtype: str = ""
) -> Times:
    """ms of forward and backward. A stage's backward goes on to its input; an AuxNet's ends at its own parameters."""
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
    _drop_gradients(module)
    return clock.ms(start, middle), clock.ms(begin, end)


def _drop_gradients(module: nn.Module) -> None:
    for parameter in module.parameters():
        parameter.grad = None


def calibrate(
    budget: float, make: Callable[[float], AuxNet], measure: Callable[[AuxNet], Share], rounds: int = ROUNDS
) -> tuple[AuxNet, float, Share]:
    """Derive, measure, correct the budget, derive again, until the measured share is close to the one asked for.

    Returns the best AuxNet, the budget it was derived with, and its measured share.
    """
    asked = budget
    tried: list[tuple[float, AuxNet, float, Share]] = []
    for _ in range(rounds):
        aux = make(asked)
        if any(_same(aux, before) for _, before, _, _ in tried):
            break
        share = measure(aux)
        ratio = share.total / budget if budget else 1.0
        tried.append((_distance(ratio), aux, asked, share))
        if CLOSE[0] <= ratio <= CLOSE[1]:
            break
        asked = min(1.0, asked * min(4.0, max(0.25, 1 / max(ratio, 1e-6))))
    _, aux, asked, share = min(tried, key=lambda t: t[0])
    return aux, asked, share


def _distance(ratio: float) -> float:
    """Above the budget counts more than below it."""
    return 3 * (ratio - 1) if ratio > 1 else 1 - ratio


def _same(a: AuxNet, b: AuxNet) -> bool:
    return (a.record.kept, a.record.thinned, a.record.dropped) == (b.record.kept, b.record.thinned, b.record.dropped)
