"""`python -m lpcompile train`: from a model's name and a folder of images to trained weights, on all ranks.

A Job is what was asked for, as plain data that every rank is given; `train_rank` is what each of them does with it. By
itself the command launches its ranks on this machine; under torchrun it is one of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from lpcompile import sources
from lpcompile.compile import parallelize
from lpcompile.core.memory_format import channels_last
from lpcompile.core.pipeline_order import checked_micro
from lpcompile.core.plan import Plan
from lpcompile.errors import UsageError
from lpcompile.models import REGISTRY
from lpcompile.passes.auxnet.zeroing import trained
from lpcompile.program import Program
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.engine.settings import settings
from lpcompile.runtime.launch import launch
from lpcompile.runtime.loop.loop import Watch, run
from lpcompile.runtime.methods import DEFAULT, get_method
from lpcompile.training.data import Images, loaders

WORKERS = 2  # processes that load images for a rank on a GPU
SMALL = 16  # pixels of the enlarged digits, for models that take any size
OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("one-cycle", "cosine", "constant")


@dataclass(frozen=True)
class Job:
    """A training run as plain data. What is None is chosen by what is trained."""

    model: str
    data: str = "digits"
    K: int = 2
    replicas: int = 1
    method: str = DEFAULT
    epochs: int = 12
    batch: int = 64
    lr: float = 0.1
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "one-cycle"
    init: str | None = None
    aux: str | None = None
    aux_budget: float | None = None  # the method's own
    aux_dtype: str | None = None  # "bf16"
    cost: str = "measured"
    plan: str | None = None
    size: int | None = None
    input: str | None = None
    seed: int = 0
    device: str = "cpu"
    workers: int | None = None
    channels_last: bool = False
    timeout: float = launch.TIMEOUT
    options: dict[str, Any] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)

    def check(self) -> None:
        """All that can be known to be wrong before anything is started."""
        get_method(self.method)
        settings(self.options)
        if self.K < 1 or self.replicas < 1:
            raise UsageError(f"-K {self.K} --replicas {self.replicas}: both are numbers of 1 or more")
        if self.data != "digits" and not Path(self.data).is_dir():
            raise UsageError(f"--data {self.data}: there is no such folder; give a folder of images, or digits")
        for name, value, known in (
            ("--optimizer", self.optimizer, OPTIMIZERS),
            ("--schedule", self.schedule, SCHEDULES),
        ):
            if value not in known:
                raise UsageError(f"{name} {value} is not one of {', '.join(known)}")
        if self.watch.resume and not self.watch.save:
            raise UsageError("--resume needs the folder of the checkpoints: --save DIR")
        if self.batch < 1 or self.epochs < 1 or self.batch % self.replicas:
            raise UsageError(f"--batch {self.batch} cannot be shared by {self.replicas} replicas; give a multiple")
        if (method := get_method(self.method)).pipeline:
            checked_micro(method, self.K, self.batch // self.replicas, self.options.get("micro"))


def train(job: Job) -> dict[str, Any]:
    """Run a job: as one rank where torchrun started this process, else on ranks of its own."""
    job.check()
    world = job.K * job.replicas
    if launch.torchrun_rank() is not None and int(os.environ["WORLD_SIZE"]) > 1:
        started = int(os.environ["WORLD_SIZE"])
        if started != world:
            raise UsageError(
                f"-K {job.K} --replicas {job.replicas} are {world} ranks, but {started} processes were started; "
                f"use torchrun --nproc-per-node {world}, or -K {max(started // job.replicas, 1)}"
            )
        launch.pin(int(os.environ.get("LOCAL_RANK", "0")), job.device)
        launch.join(job.device, job.timeout)
        found = train_rank(job)
        launch.leave()
        return found
    if world == 1:
        return train_rank(job)
    result: dict[str, Any] = launch.launch(
        train_rank, (job,), world=world, K=job.K, device=job.device, timeout=job.timeout
    )
    return result


def train_rank(job: Job) -> dict[str, Any]:
    """One rank's work, from the model's name to the last evaluation."""
    logging.basicConfig(format="%(message)s", level=logging.INFO if _rank() == 0 else logging.WARNING)
    watch = job.watch
    if launch.restarts() and watch.save:
        watch = Watch(**{**vars(watch), "resume": True})
    torch.manual_seed(job.seed)
    source = sources.load(
        job.model, batch=job.batch, input_shape=job.input, seed=job.seed, channels_last=job.channels_last
    )
    model = source.model
    channels, size = _image(source, job)
    shard = (_rank() // job.K, job.replicas)
    # stored λ and κ are of a sample, not of a view of it
    train, test, classes = loaders(
        job.data,
        channels=channels,
        size=size,
        batch=job.batch // job.replicas,
        seed=job.seed,
        workers=_workers(job),
        pinned=job.device.startswith("cuda"),
        shard=shard,
        augment=not _stores(job),
    )
    before = checkpoint.latest(Path(watch.save)) if watch.save and watch.resume else None
    x = next(iter(train))[0]
    x = channels_last(x) if job.channels_last else x
    program = compiled(job, model, x, before)
    _check_classes(program, x, classes, job)
    total = job.epochs * len(train)
    trainer = program.trainer(
        F.cross_entropy,
        optimizer=_optimizer(job),
        scheduler=_scheduler(job, total),
        method=job.method,
        device=job.device if job.device != "cpu" else None,
        trace=watch.trace is not None,
        replicas=job.replicas,
        **{"total_steps": total, **job.options},
    )
    for loader in (train, test) if not trainer.takes_inputs else ():
        if isinstance(loader, DataLoader) and isinstance(loader.dataset, Images):
            loader.dataset.read = False
    if trainer.main:
        replicas = f" x {job.replicas} replicas" if job.replicas > 1 else ""
        what = f"{job.model} on {job.data}: {len(train) * job.batch} samples an epoch, {classes} classes"
        print(f"{what}; K = {job.K}{replicas}, {job.method}, {total} steps of {job.batch}", flush=True)
    return run(trainer, train, job.epochs, test=test, watch=watch)


def compiled(job: Job, model: nn.Module, x: torch.Tensor, before: Path | None) -> Program:
    """The program, by a plan that rank 0 makes and all follow; by a checkpoint's own where it has as many stages."""
    init = job.init or first_weights(job.model, model)
    plan = Plan.load(job.plan) if job.plan else None
    if before is not None:
        saved = checkpoint.describe(before)
        if saved["K"] == job.K:
            plan = plan or Plan.from_json(saved["plan"])
        else:  # other stages: AuxNets begin as copies of what the saved model has become
            checkpoint.check_model(model, before)
            model.load_state_dict(checkpoint.model_state(before), strict=True)
            init = "copy"
    given: dict[str, Any] = {
        "example_inputs": x, "cost": job.cost, "method": job.method, "aux_budget": job.aux_budget,
        "aux": job.aux or ("derived"), "aux_init": init, "threads": 1,
        "aux_dtype": torch.bfloat16 if job.aux_dtype else None,
    }  # fmt: skip
    return parallelize(model, job.K, plan=plan, **given)


def first_weights(spec: str, model: nn.Module) -> str:
    """How AuxNets start: consistently where a model is known to be fresh; nothing of a user's own is set to zero."""
    return "consistent" if sources.kind_of(spec).fresh and trained(model) is None else "copy"


def _workers(job: Job) -> int:
    """Processes that load images. One core can load or compute; beside a GPU they keep loading out of the steps."""
    if job.workers is not None:
        return job.workers
    return WORKERS if job.device.startswith("cuda") and job.data != "digits" else 0


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _stores(job: Job) -> bool:
    return get_method(job.method).keeps_samples(job.options.get("kappa", "stored"))


def _image(source: sources.Source, job: Job) -> tuple[int, int]:
    """Channels and pixels that the model takes."""
    shapes = [tuple(t.shape) for t in source.example_args if isinstance(t, torch.Tensor)]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise UsageError(f"train is for models of one image, and {job.model} takes {shapes}; use program.fit for it")
    channels, size = shapes[0][1], shapes[0][2]
    any_size = job.model in REGISTRY and size == 32  # the ResNets, which end with a mean over all positions
    return channels, job.size or (SMALL if job.data == "digits" and any_size else size)


def _check_classes(program: Program, x: torch.Tensor, classes: int, job: Job) -> None:
    with torch.no_grad():
        program.module.eval()
        given = program.module(x[:2])
        program.module.train()
    if not isinstance(given, torch.Tensor) or given.dim() != 2 or given.shape[1] < classes:
        shape = list(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
        raise UsageError(
            f"{job.model} gives {shape} and {job.data} has {classes} classes; the model must tell them apart"
        )


def _optimizer(job: Job) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    """Fused: one pass over the weights, also on the CPU, where torch's default takes two to three times as long."""
    common: dict[str, Any] = {"lr": job.lr, "weight_decay": job.weight_decay, "fused": True}

    def make(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        if job.optimizer == "adamw":
            return torch.optim.AdamW(parameters, **common)
        return torch.optim.SGD(parameters, momentum=job.momentum, nesterov=True, **common)

    return make


def _scheduler(job: Job, total: int) -> Callable[[Any], Any] | None:
    if job.schedule == "constant":
        return None
    if job.schedule == "cosine":
        return lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    # its total is exact: one more step than that is an error, so a skewed method's last flush must not count
    return lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, job.lr, total + 1, cycle_momentum=False)
