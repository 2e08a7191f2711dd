"""One run of an experiment: accuracy and, after every epoch, what the paper's figures show.

All ranks run in turn in one process, with the bits of K processes; on GPUs each rank is a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lpcompile.compile import parallelize
from lpcompile.paper.data import Batch, augmented, batches, samples_per_epoch
from lpcompile.paper.formula import formula
from lpcompile.paper.networks import build, smaller
from lpcompile.program import Program
from lpcompile.runtime.engine.trainer import Trainer
from lpcompile.runtime.launch import launch
from lpcompile.runtime.methods import get_method
from lpcompile.runtime.penalty.beta import exponential
from lpcompile.runtime.penalty.published import METHOD
from lpcompile.study.config import PLAIN, RunSpec
from lpcompile.study.data import Pair, Samples, image_samples
from lpcompile.study.evaluation import evaluate, evaluation_batches, first, recorded
from lpcompile.study.networks import figures, loss_fn
from lpcompile.study.train_run import simulated

RECALIBRATION_BATCHES = 20
START_K = 3  # stages whose consistent start plain training begins with
PLAN_OPTIONS = ("as_published", "placement", "balance", "init", "aux_budget", "aux")
SETTINGS = (
    "psi",
    "beta",
    "noise",
    "distil",
    "clip",
    "warmup",
    "recouple",
    "collapse",
    "lam_lr",
    "kappa_lr",
    "kappa",
    "micro",
)
WEIGHT_DECAY, MOMENTUM = 5e-4, 0.9


def train_run(spec: RunSpec, data: str, folder: Path) -> dict[str, Any]:
    """Train and evaluate; gives the record of the run, or why it failed."""
    device = spec.entry.options.get("device", "cpu")
    if device != "cpu" and spec.K > 1:
        return recorded(lambda: launch.launch(train, (spec, data, folder), world=spec.K, K=spec.K, device=device))
    return recorded(lambda: train(spec, data, folder))


def train(spec: RunSpec, data: str, folder: Path) -> dict[str, Any]:
    """One process's part of a run."""
    options = spec.entry.options
    samples = image_samples(folder, data, spec.size, spec.validation)
    train_on = samples.train[0][: spec.images], samples.train[1][: spec.images]
    stream = batches(train_on, spec.epochs, spec.network.batch, augmented(spec), spec.seed)
    steps = samples_per_epoch(len(train_on[1]), augmented(spec)) // spec.network.batch
    shown = [first(pair, int(options.get("curve", 500))) for pair in (train_on, samples.test)]
    final = first(samples.test, int(options.get("evaluated", len(samples.test[1]))))
    torch.manual_seed(spec.seed)
    model = build(spec.network, spec.size, classes(samples))
    if spec.entry.method == PLAIN:
        if "init" in options:  # the first weights of a decoupled run
            compiled(replace(spec, K=START_K, entry=replace(spec.entry, method=METHOD)), model, classes(samples))
        curve = _plain(spec, model, stream, steps, shown)
        found: dict[str, Any] = evaluate(model, final)
        known: dict[str, Any] = {}
    else:
        program = compiled(spec, model, classes(samples))
        trainer = trainer_of(spec, program, steps)
        curve, exact = _decoupled(spec, trainer, stream, steps, shown)
        again = [(x, y) for x, y, _ in islice(batches(train_on, 1, spec.network.batch, 0, 0), RECALIBRATION_BATCHES)]
        found = trainer.evaluate(evaluation_batches(final), metrics=figures, recalibrate=again)
        known = {"simulated": simulated(program), "formula": formula(program.plan), "exact": exact, "aux": [
            {"share": round(b.aux.share, 4), "parameters": b.aux.parameters, "made": b.aux.made or b.aux.kind}
            for b in program.plan.boundaries if b.aux is not None]}  # fmt: skip
    accuracy = {name: round(100 * value, 2) for name, value in found.items() if name.endswith("accuracy")}
    return {**known, **accuracy, "loss": round(float(found["loss"]), 4), "curve": curve}


def classes(samples: Samples) -> int:
    return int(samples.train[1].max()) + 1


def compiled(spec: RunSpec, model: nn.Module, count: int = 10, cost: str = "flops", **more: Any) -> Program:
    """The program of a run. Its option "auxnet" is the depth of a smaller model of the family."""
    options = {name: value for name, value in spec.entry.options.items() if name in PLAN_OPTIONS}
    if "auxnet" in spec.entry.options:
        options["auxnet"] = build(smaller(spec.network, int(spec.entry.options["auxnet"])), spec.size, count)
    x = torch.randn(spec.network.batch, 3, spec.size, spec.size, generator=torch.Generator().manual_seed(0))
    method = spec.entry.method
    return parallelize(model, spec.K, example_inputs=x, cost=cost, method=method, gate=False, **{**options, **more})


def trainer_of(spec: RunSpec, program: Program, steps: int) -> Trainer:
    settings = {name: value for name, value in spec.entry.options.items() if name in SETTINGS}
    if "beta" in settings:
        settings["beta"] = beta_of(settings["beta"], steps)
    total = spec.epochs * steps
    return program.trainer(loss_fn, total_steps=total, **factories(spec, total), **settings)


def beta_of(given: Any, steps: int) -> Any:
    """β as the trainer takes it. In a record: a number, a rule's name, [first, last] of a smooth rise, or a table by
    epoch ({"0": 1e6, "50": 1e7})."""
    if isinstance(given, dict):
        return {int(float(epoch) * steps): value for epoch, value in given.items()}
    return exponential(*given) if isinstance(given, (list, tuple)) else given


def factories(spec: RunSpec, total: int) -> dict[str, Any]:
    """SGD with momentum, its rate on a cosine: for plain training, stages and AuxNets alike."""

    def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, spec.network.lr, momentum=MOMENTUM, nesterov=True, weight_decay=WEIGHT_DECAY)

    def scheduler(of: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(of, total)

    return {"optimizer": optimizer, "scheduler": scheduler}


def _decoupled(
    spec: RunSpec, trainer: Trainer, stream: Iterator[Batch], steps: int, shown: list[Pair]
) -> tuple[list[Any], float]:
    """The curve, and the share of steps that were exact: those of the warm-up, and while λ was too far from X."""
    curve, exact = [], 0
    for epoch in range(spec.epochs):
        total, count = 0.0, 0
        for x, y, index in islice(stream, steps):
            metrics = trainer.step(x, y, index)
            exact += get_method(metrics["method"]).exact
            seen = [float(value) for name, value in metrics.items() if name.startswith("violation")]
            total, count = total + sum(seen), count + len(seen)
        trained, tested = (trainer.evaluate(evaluation_batches(pair), metrics=figures) for pair in shown)
        curve.append(_point(epoch, trained, tested, total / count if count else None))
    return curve, round(exact / (spec.epochs * steps), 4)


def _plain(spec: RunSpec, model: nn.Module, stream: Iterator[Batch], steps: int, shown: list[Pair]) -> list[Any]:
    make, device = factories(spec, spec.epochs * steps), torch.device(spec.entry.options.get("device", "cpu"))
    optimizer = make["optimizer"](list(model.to(device).parameters()))
    scheduler = make["scheduler"](optimizer)
    curve = []
    for epoch in range(spec.epochs):
        for x, y, _ in islice(stream, steps):
            torch.autograd.backward(loss_fn(model(x.to(device)), y.to(device)))
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        trained, tested = (evaluate(model, pair) for pair in shown)
        curve.append(_point(epoch, trained, tested, None))
    return curve


def _point(epoch: int, trained: dict[str, Any], tested: dict[str, Any], violation: float | None) -> dict[str, Any]:
    return {
        "epoch": epoch + 1,
        "train loss": round(float(trained["loss"]), 4),
        "violation": None if violation is None else float(f"{violation:.4g}"),
        "accuracy": round(100 * float(tested["accuracy"]), 2),
    }
