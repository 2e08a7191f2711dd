"""`python -m lpcompile train`: from a model's name and a folder of images to trained weights, on all ranks.

By itself the command launches its ranks on this machine; under torchrun it is one of them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch
import torch.distributed as dist

from lpcompile import sources
from lpcompile.core.memory_format import channels_last
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.comm import handshake
from lpcompile.runtime.launch import board, launch
from lpcompile.runtime.loop.data import first_batch
from lpcompile.runtime.loop.loop import after_restart, run
from lpcompile.runtime.loop.record import Record
from lpcompile.training import data
from lpcompile.training.build import check_classes, compile_job, make_loaders, make_trainer
from lpcompile.training.images import Images
from lpcompile.training.job import Job
from lpcompile.training.timm_recipe import average_of

GPU_LOADER_WORKERS = 2  # processes that load images for a rank on a GPU


def train(job: Job) -> Record:
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
        with launch.ends_with_error():
            found = train_rank(job)
            launch.leave()
        return found
    if world == 1:
        return train_rank(job)
    result: Record = launch.launch(train_rank, (job,), world=world, K=job.K, device=job.device, timeout=job.timeout)
    return result


def train_rank(job: Job) -> Record:
    """One rank's work, from the model's name to the last evaluation."""
    logging.basicConfig(format="%(message)s", level=logging.INFO if _rank() == 0 else logging.WARNING)
    if dist.is_initialized():
        handshake.compare(job.facts(), None)
    watch = after_restart(job.watch)
    torch.manual_seed(job.seed)
    source = sources.load(
        job.model,
        **sources.parse_arguments(job.arg),
        batch=job.batch,
        input_shape=job.input,
        seed=job.seed,
        channels_last=job.channels_last,
    )
    model = source.model
    _fetch(job)
    shard = (_rank() // job.K, job.replicas)
    pinned = job.device.startswith("cuda")
    train, test, classes = make_loaders(source, job, workers=_workers(job), pinned=pinned, shard=shard)
    train = job.timm.prepared(train, classes, job.seed)
    before = checkpoint.resumable(Path(watch.save)) if watch.save and watch.resume else None
    x = first_batch(train)[0]
    x = channels_last(x) if job.channels_last and isinstance(x, torch.Tensor) else x
    with board.away(0, "compiling the model"):
        program = compile_job(job, model, x, before)
    check_classes(program, x, classes, job)
    total = job.epochs * len(train)
    device = job.device if job.device != "cpu" else None
    trace = watch.trace is not None
    trainer = make_trainer(job, program, total, device=device, trace=trace, replicas=job.replicas)
    if job.timm.model_ema:
        trainer.average = average_of(trainer, job.timm.model_ema_decay)
    for loader in (train, test) if not trainer.takes_inputs else ():
        if loader is not None and isinstance(loader.dataset, Images):
            loader.dataset.read = False
    if trainer.main:
        replicas = f" x {job.replicas} replicas" if job.replicas > 1 else ""
        what = f"{job.model} on {job.data}: {len(train) * job.batch} samples an epoch, {classes} classes"
        print(f"{what}; K = {job.K}{replicas}, {job.method}, {total} steps of {job.batch}", flush=True)
        if job.K > 1:
            print(f"{program.plan.choice}; predicted speedup {program.plan.rho:.2f} of at most {job.K}", flush=True)
    return run(trainer, train, job.epochs, test=test, watch=watch)


def _fetch(job: Job) -> None:
    """Under torchrun, one rank of each machine has the data downloaded or unpacked, and the others wait for it."""
    if not dist.is_initialized() or "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with board.away(0, "fetching data", board.RESTS):
            data.check(job.data)
    with board.waiting():
        dist.barrier()


def _workers(job: Job) -> int:
    """Processes that load images: by default none on the CPU, where they would compete with the rank for its core."""
    if job.workers is not None:
        return job.workers
    return GPU_LOADER_WORKERS if job.device.startswith("cuda") and job.data != "digits" else 0


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0
