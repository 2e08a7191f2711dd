"""`python -m lpcompile train`: from a model's name and a folder of images to trained weights, on all ranks.

By itself the command launches its ranks on this machine; under torchrun it is one of them.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from lpcompile import sources
from lpcompile.core.memory_format import channels_last
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.launch import launch
from lpcompile.runtime.loop.loop import run
from lpcompile.training.build import check_classes, compile_job, image_shape, make_trainer
from lpcompile.training.data import Images, loaders
from lpcompile.training.job import Job

GPU_LOADER_WORKERS = 2  # processes that load images for a rank on a GPU


def train(job: Job) -> dict[str, Any]:
    """Run a job: as one rank under torchrun, else on processes of its own."""
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
        watch = replace(watch, resume=True)
    torch.manual_seed(job.seed)
    source = sources.load(
        job.model, batch=job.batch, input_shape=job.input, seed=job.seed, channels_last=job.channels_last
    )
    model = source.model
    channels, size = image_shape(source, job)
    shard = (_rank() // job.K, job.replicas)
    # stored λ and κ belong to a sample, not to an augmented view of it
    train, test, classes = loaders(
        job.data,
        channels=channels,
        size=size,
        batch=job.batch // job.replicas,
        seed=job.seed,
        workers=_workers(job),
        pinned=job.device.startswith("cuda"),
        shard=shard,
        augment=not job.stores_samples,
    )
    before = checkpoint.latest(Path(watch.save)) if watch.save and watch.resume else None
    x = next(iter(train))[0]
    x = channels_last(x) if job.channels_last else x
    program = compile_job(job, model, x, before)
    check_classes(program, x, classes, job)
    total = job.epochs * len(train)
    device = job.device if job.device != "cpu" else None
    trace = watch.trace is not None
    trainer = make_trainer(job, program, total, device=device, trace=trace, replicas=job.replicas)
    for loader in (train, test) if not trainer.takes_inputs else ():
        if isinstance(loader, DataLoader) and isinstance(loader.dataset, Images):
            loader.dataset.read = False
    if trainer.main:
        replicas = f" x {job.replicas} replicas" if job.replicas > 1 else ""
        what = f"{job.model} on {job.data}: {len(train) * job.batch} samples an epoch, {classes} classes"
        print(f"{what}; K = {job.K}{replicas}, {job.method}, {total} steps of {job.batch}", flush=True)
    return run(trainer, train, job.epochs, test=test, watch=watch)


def _workers(job: Job) -> int:
    """Processes that load images: by default none on the CPU, where they would compete with the rank for its core."""
    if job.workers is not None:
        return job.workers
    return GPU_LOADER_WORKERS if job.device.startswith("cuda") and job.data != "digits" else 0


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
