"""One run of a study, in one process on one core: all ranks in turn, with the bits of K processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lpcompile.compile import parallelize
from lpcompile.program import Program
from lpcompile.runtime.engine.trainer import Trainer
from lpcompile.runtime.methods import get_method
from lpcompile.runtime.methods.recipe import recipe_of
from lpcompile.simulate.outlook import outlook_row
from lpcompile.simulate.step import default_device
from lpcompile.simulate.whole_run import exact_rho, whole_run
from lpcompile.study.config import DDP, PLAIN, RunSpec
from lpcompile.study.data import Pair, Samples, image_batches, image_samples, text_batches, text_samples
from lpcompile.study.evaluation import evaluate, evaluation_batches, first, recorded
from lpcompile.study.networks import Network, build, example, figures, loss_fn

CURVE_SAMPLES = 2_000  # of validation, after every epoch
RECALIBRATION_BATCHES = 20
AUX_OPTIONS = ("aux_budget", "aux", "init")  # of `parallelize`
CONSISTENT = "penalty"  # whose consistent start plain training may begin with
UNTOLD = ("BatchNorm",)  # words of warnings that every pipeline gives


def train_run(spec: RunSpec, data: str, folder: Path) -> dict[str, Any]:
    """Train and evaluate; gives the record of the run, or why a method refused it."""
    return recorded(lambda: _train(spec, data, folder), ignored=UNTOLD)


def _train(spec: RunSpec, data: str, folder: Path) -> dict[str, Any]:
    samples = text_samples() if spec.network.text else image_samples(folder, data, spec.size, spec.validation)
    stream = batches(spec, data, samples)
    torch.manual_seed(spec.seed)
    model = build(spec.network, spec.size)
    curve_of = first(samples.validation, CURVE_SAMPLES)
    final = samples.validation if spec.split == "validation" else samples.test
    if spec.entry.method in (PLAIN, DDP):
        if "init" in spec.entry.options:  # the first weights of a decoupled run
            compiled(replace(spec, entry=replace(spec.entry, method=CONSISTENT)), model)
        known: dict[str, Any] = {"curve": _plain(spec, model, stream, curve_of)}
        found = evaluate(model, final)
    else:
        trainer, planned = make_trainer(spec, model)
        known = planned | _by_trainer(spec, trainer, stream, curve_of)
        again = list(islice(batches(spec, data, samples), RECALIBRATION_BATCHES))
        found = trainer.evaluate(evaluation_batches(final), metrics=figures, recalibrate=again)
    accuracy = {name: round(100 * value, 2) for name, value in found.items() if name.endswith("accuracy")}
    return {**accuracy, "loss": round(found["loss"], 4), "tested": final[1].numel(), **known}


def batches(spec: RunSpec, data: str, samples: Samples) -> Iterator[Pair]:
    """The batches of all epochs, the same for every method."""
    g = torch.Generator().manual_seed(spec.seed + 1)
    if spec.network.text:
        return text_batches(samples.train, spec.steps, spec.network.batch, g)
    train = first(samples.train, spec.images)
    return image_batches(train, spec.steps, spec.network.batch, g, mirror=spec.data != "digits")


def factories(spec: RunSpec) -> dict[str, Any]:
    """Optimizers and schedule: one cycle, for stages and AuxNets."""
    network, options = spec.network, spec.entry.options
    lr = float(options.get("lr", network.lr))

    def optimizer(parameters: list[nn.Parameter], rate: float = lr) -> torch.optim.Optimizer:
        if network.optimizer == "adamw":
            return torch.optim.AdamW(parameters, rate, weight_decay=0.05)
        return torch.optim.SGD(parameters, rate, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def scheduler(of: torch.optim.Optimizer) -> Any:
        largest = [group["lr"] for group in of.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(of, largest, spec.steps + 1, cycle_momentum=False)

    found: dict[str, Any] = {"optimizer": optimizer, "scheduler": scheduler}
    if "aux_lr" in options:
        found["aux_optimizer"] = lambda parameters: optimizer(parameters, lr * float(options["aux_lr"]))
    return found


def compiled(spec: RunSpec, model: nn.Module, cost: str = "flops", **more: Any) -> Program:
    options = {name: value for name, value in spec.entry.options.items() if name in AUX_OPTIONS}
    x = example(spec.network, spec.size, spec.network.batch)
    return parallelize(
        model, spec.K, example_inputs=x, cost=cost, method=spec.entry.method, gate=False, **{**options, **more}
    )


def trainer_of(spec: RunSpec, program: Program, **settings: Any) -> Trainer:
    return program.trainer(
        loss_fn,
        total_steps=spec.steps,
        autocast=_dtype(spec.network),
        micro=spec.entry.options.get("micro"),
        **factories(spec),
        **settings,
    )


def make_trainer(spec: RunSpec, model: nn.Module) -> tuple[Trainer, dict[str, Any]]:
    """A trainer, and what the record says of the plan: AuxNets, and a step that is simulated from counted costs."""
    program = compiled(spec, model)
    trainer = trainer_of(spec, program)
    nets = [b.aux for b in program.plan.boundaries if b.aux is not None]
    known: dict[str, Any] = {"ran": program.plan.training, "micro": trainer.micro}
    if nets:
        known["aux"] = [{"share": round(a.share, 4), "parameters": a.parameters, "made": a.kind} for a in nets]
    return trainer, known | {"simulated": simulated(program)}


def simulated(program: Program) -> dict[str, float]:
    """The step of a plan as its costs predict it; ρ is that of all phases, but for exact steps between decoupled ones,
    which have their own."""
    plan = program.plan
    device = default_device(plan)
    row, run = outlook_row(plan, device, plan.world), whole_run(plan, device)
    if row is None:
        return {}
    rho = row.rho if run is None else run.rho
    exact = exact_rho(plan, device)
    beside = {} if exact is None else {"exact rho": round(exact, 3)}
    return {**beside, "rho": round(rho, 3), "memory": round(row.memory), "sent": round(row.sent),
            "late": round(row.late, 3), "idle": round(row.idle, 3), "extra": row.extra}  # fmt: skip


def _by_trainer(spec: RunSpec, trainer: Trainer, stream: Iterator[Pair], held: Pair) -> dict[str, Any]:
    curve, metrics, exact = list[list[float]](), dict[str, Any](), 0
    for epoch in range(spec.epochs):
        for x, y in islice(stream, spec.per_epoch):
            metrics = trainer.step(x, y)
            exact += get_method(metrics["method"]).exact
        found = trainer.evaluate(evaluation_batches(held), metrics=figures)
        curve.append([epoch + 1, round(100 * found["accuracy"], 2)])
    violations = [value for name, value in metrics.items() if name.startswith("violation ")]
    known: dict[str, Any] = {"violation": round(max(violations), 5)} if violations else {}
    recipe = recipe_of(spec.entry.method)
    if exact and len(recipe) == 1 and not get_method(recipe[0].method).exact:  # before and between decoupled ones
        known["exact"] = round(exact / spec.steps, 4)
    if metrics.get("exact steps"):
        known["exact_steps"] = metrics["exact steps"]
    return {"curve": curve, **known}


def _plain(spec: RunSpec, model: nn.Module, stream: Iterator[Pair], held: Pair) -> list[list[float]]:
    """Plain training; for data parallelism gradients are means over K parts of a batch, each with its own norms."""
    make = factories(spec)
    optimizer = make["optimizer"](list(model.parameters()))
    scheduler, dtype = make["scheduler"](optimizer), _dtype(spec.network)
    parts = spec.K if spec.entry.method == DDP else 1
    curve = []
    for epoch in range(spec.epochs):
        for x, y in islice(stream, spec.per_epoch):
            for part, target in zip(x.chunk(parts), y.chunk(parts), strict=True):
                with torch.autocast("cpu", dtype, enabled=dtype is not None):
                    output = model(part)
                torch.autograd.backward(loss_fn(output, target) * (len(part) / len(x)))
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        curve.append([epoch + 1, round(100 * evaluate(model, held)["accuracy"], 2)])
    return curve


def _dtype(network: Network) -> torch.dtype | None:
    return torch.bfloat16 if network.dtype == "bf16" else None
