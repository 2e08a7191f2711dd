"""Checks every `check_every` steps: is the model itself learning, and every stage of it?

The loss that a run with AuxNets minimises goes through λ. Beside it stands the loss of the model: a few samples of the
step's last micro-batch pass through the stages as they are, one after the other, in training mode (batch statistics,
which are not kept). Ranks of a skewed method are some micro-batches apart then, which does not matter for what is
looked for. Nothing is flushed, and the random streams stay where they are.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from lpcompile.runtime.engine.batches.batch import first_samples
from lpcompile.runtime.engine.worker import Worker, get_random, set_random
from lpcompile.runtime.health import coupling
from lpcompile.runtime.health.advice import advice
from lpcompile.runtime.methods import get_method

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

log = logging.getLogger("lpcompile")
SAMPLES = 32  # of a micro-batch: enough for BatchNorm, and little beside check_every steps
TAG = 101  # apart from the tags of training and evaluation
FIRST_STEPS = 10  # whose mean loss, or the first one, is the one at the start
LEARNT = 0.97  # share of the first loss below which a model has learnt something
GAP = 0.7  # share of the model's loss below which the loss through λ tells another story
STARVED = 1e-3  # a stage's gradient as a share of the one at the last boundary
AFTER = 100  # exact steps, or steps of training, after which a run is judged


def after_step(engine: Engine, metrics: dict[str, Any]) -> None:
    """Note the loss at the start; where a check is due, add the model's own loss to the metrics and judge the run."""
    for w in engine.workers:
        if w.last and len(w.first_losses) < FIRST_STEPS and "loss" in metrics:
            w.first_losses.append(metrics["loss"])
    if engine.plan.K == 1 or engine.steps % engine.settings.check_every:
        return
    if not engine.target.aux:
        look_at_loss(engine)
        return
    if not engine.method.exact:
        loss = model_loss(engine)
        if loss is not None:
            metrics["model loss"] = loss
    seen = {name: value for w in engine.workers for name, value in w.means.items()}
    seen |= first_loss(engine)
    seen |= {name: v for name, v in metrics.items() if name.startswith(("model", "gradient", "p "))}
    seen = engine.gather(seen)
    metrics |= {name: v for name, v in seen.items() if name == "model loss"}  # on all ranks, for their progress line
    judge(engine, seen)


def look_at_loss(engine: Engine) -> None:
    """For methods whose loss is the model's own: warn once that it has not fallen.

    The process that has the loss warns by itself, so that no rank waits.
    """
    for w in engine.workers:
        first, now = first_loss(engine).get("first loss"), w.means.get("loss")
        learnt = w.head is not None or first is None or now is None or now <= LEARNT * first
        if w.last and not learnt and engine.steps >= AFTER and ("chance", 0) not in engine.warned:
            engine.warned.add(("chance", 0))
            text = f"the loss is {now:.3g} and was {first:.3g} at first"
            log.warning("step %d: %s; %s", engine.steps, text, advice(engine.target, "chance"))


def first_loss(engine: Engine) -> dict[str, float]:
    """The mean loss of the first steps, in the process that has it; the very first one where the next ones are higher:
    a run that diverges at once and ends at chance has not learnt by coming back from there."""
    found = [loss for w in engine.workers for loss in w.first_losses]
    return {"first loss": min(found[0], sum(found) / len(found))} if found else {}


def model_loss(engine: Engine) -> float | None:
    """The loss of the model on a few samples of this step, on the rank that has it. All ranks call it."""
    slot, X, loss = engine.slot - engine.micro, None, None
    if any(slot not in w.batches for w in engine.workers):
        return None  # flushed since
    for w in engine.workers:
        whole, kept = w.batches[slot], get_random(w.device)
        if engine.plan.batch_free and not engine.settings.compile:  # compiled code is for one size
            w.batches[slot] = first_samples(whole, engine.program.input_specs, SAMPLES)
        try:
            if engine.distributed and w.rank > 0:
                X = _received(engine, w, slot)
            with torch.no_grad(), w.statistics_kept(w.stage.module):
                X, found = w.run_stage(w.unpacked(("X", w.rank, slot), X) if w.rank > 0 and X else (), slot)
            if found is not None:
                loss = float(found)
                continue
            X = w.message(("X", w.rank + 1, slot), X)
            for t in X if engine.distributed else ():
                dist.send(t.contiguous(), engine.first_rank + w.rank + 1, tag=TAG)
        finally:
            w.batches[slot] = whole
            set_random(w.device, kept)
    return loss


def _received(engine: Engine, w: Worker, slot: int) -> tuple[torch.Tensor, ...]:
    found = tuple(torch.empty(shape, dtype=dtype, device=w.device) for shape, dtype in w.shapes(("X", w.rank, slot)))
    for t in found:
        dist.recv(t, engine.first_rank + w.rank - 1, tag=TAG)
    return found


def judge(engine: Engine, seen: dict[str, float]) -> None:
    """Warn of what all ranks see alike, once of each kind; re-couple where only the path through λ learns."""
    loss, model, first = seen.get("loss"), seen.get("model loss"), seen.get("first loss")
    at, limit = engine.at, engine.settings.recouple
    worst = {int(n.split()[1]): v for n, v in seen.items() if n.startswith("violation")}
    k = max(worst, key=lambda k: worst[k], default=0)
    if at.coupled >= 0 and engine.steps - at.coupled >= AFTER and worst and worst[k] > coupling.SMALL_AGAIN * limit:
        text = f"the AuxNet of boundary {k} does not follow X: the violation is {worst[k]:.3g}"
        warn(engine, "far", k, f"{text} after {engine.steps - at.coupled} exact steps, which go on")
    if engine.method.exact:
        warm = engine.steps - at.since if at.coupled < 0 and engine.target.aux == "auxnet" else 0
        if warm >= AFTER and worst and worst[k] > coupling.HOPELESS:
            text = f"the AuxNet of boundary {k} does not follow X: the violation is {worst[k]:.3g}"
            warn(engine, "far", k, f"{text} after {warm} steps of warm-up")
        if engine.steps >= AFTER and loss is not None and first is not None and loss > LEARNT * first:
            warn(engine, "chance", 0, f"the loss is {loss:.3g} and was {first:.3g} at first, in exact steps")
        return
    if worst and not coupling.watched(engine) and worst[k] > coupling.HOPELESS:
        warn(engine, "far", k, f"the violation of boundary {k} is {worst[k]:.3g}: stages start from values unlike X")
    for boundary in _starved(engine, seen):
        share = seen[f"gradient {boundary}"] / seen[f"p {engine.plan.K - 1}"]
        text = f"stage {boundary - 1} gets {share:.1g} of the gradient at the last boundary: it hardly learns"
        warn(engine, "starved", boundary, f"boundary {boundary}: {text}")
    if model is None or loss is None or first is None:
        return
    if model > LEARNT * first and loss < GAP * model:
        text = f"the loss of the model is {model:.3g} ({first:.3g} at first) while the loss through λ is {loss:.3g}"
        warn(engine, "chance", k, f"{text}: the model does not learn (largest violation {worst.get(k, 0):.3g}, "
             f"boundary {k})")  # fmt: skip
        if coupling.watched(engine) and at.coupled < 0:
            coupling.couple(engine, text)
    elif engine.steps >= AFTER and model > LEARNT * first:
        warn(engine, "chance", 0, f"the loss of the model is {model:.3g} and was {first:.3g} at first")


def _starved(engine: Engine, seen: dict[str, float]) -> list[int]:
    top = seen.get(f"p {engine.plan.K - 1}", 0.0)
    return [k for k in range(1, engine.plan.K) if seen.get(f"gradient {k}", top) < STARVED * top]


def warn(engine: Engine, trouble: str, boundary: int, text: str) -> None:
    """Say it once, from one process, with advice for the method in use."""
    if engine.main and (trouble, boundary) not in engine.warned:
        coming = (get_method(phase.method) for phase in engine.recipe[engine.at.index :])  # a warm-up prepares another
        method = next((method for method in coming if not method.exact), engine.target)
        log.warning("step %d: %s; %s", engine.steps, text, advice(method, trouble))
    engine.warned.add((trouble, boundary))
