"""From a job to the program of its model and to a trainer on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lpcompile import sources
from lpcompile.compile import parallelize
from lpcompile.core.plan import Plan
from lpcompile.errors import UsageError
from lpcompile.models import REGISTRY
from lpcompile.passes.auxnet.zeroing import trained
from lpcompile.planning.link import planner_link
from lpcompile.program import Program
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.engine.trainer import Trainer
from lpcompile.training.data import Loader, loaders
from lpcompile.training.job import Job
from lpcompile.training.text import next_byte_loss

DIGITS_SIZE = 16  # pixels of the enlarged digits, for models that take any size


def image_shape(source: sources.Source, job: Job) -> tuple[int, int]:
    """Channels and pixels of the images that the model takes."""
    shapes = [tuple(t.shape) for t in source.example_args if isinstance(t, torch.Tensor)]
    shapes += [tuple(t.shape) for t in source.example_kwargs.values() if isinstance(t, torch.Tensor)]
    if len(shapes) != 1 or len(shapes[0]) != 4:
        raise UsageError(f"train is for models of one image, and {job.model} takes {shapes}; use program.fit for it")
    channels, size = shapes[0][1], shapes[0][2]
    any_size = (
        job.model in REGISTRY and size == 32 and job.input is None
    )  # the ResNets, which end with a mean over all positions
    return channels, job.size or (DIGITS_SIZE if job.data == "digits" and any_size else size)


def make_loaders(source: sources.Source, job: Job, **options: Any) -> tuple[Loader, Loader | None, int]:
    """The data of a job, as its model takes them; see `data.loaders`."""
    # stored λ and κ belong to a sample, not to an augmented view of it
    options = {"batch": job.batch // job.replicas, "seed": job.seed, "augment": not job.stores_samples, **options}
    if not job.data.startswith("text:"):
        channels, size = image_shape(source, job)
        return loaders(job.data, channels=channels, size=size, **options)
    given = {"": source.example_args[0]} if source.example_args else source.example_kwargs
    ids = given.get("input_ids", given.get(""))
    if (
        not isinstance(ids, torch.Tensor)
        or ids.dtype != torch.int64
        or set(given) - {"", "input_ids", "attention_mask"}
    ):
        raise UsageError(f"--data {job.data} is for language models that take token ids, and {job.model} is none")
    return loaders(job.data, size=ids.shape[1], names=tuple(source.example_kwargs), **options)


def check_classes(program: Program, x: Any, classes: int, job: Job) -> None:
    """Refuse a model whose output cannot tell the classes of the data apart."""
    if job.data.startswith("text:"):
        return
    with torch.no_grad():
        program.module.eval()
        given = program.module(x[:2])
        program.module.train()
    if not isinstance(given, torch.Tensor) or given.dim() != 2 or given.shape[1] < classes:
        shape = list(given.shape) if isinstance(given, torch.Tensor) else type(given).__name__
        raise UsageError(
            f"{job.model} gives {shape} and {job.data} has {classes} classes; the model must tell them apart"
        )


def compile_job(job: Job, model: nn.Module, x: Any, before: Path | None) -> Program:
    """The program of a job. Rank 0 makes the plan, unless `before`, a checkpoint of as many stages, has one."""
    init = job.init or ("fresh" if job.auxnet else first_weights(job.model, model))
    smaller = None
    if job.auxnet:
        smaller = sources.load(job.auxnet, batch=job.batch, input_shape=job.input, seed=job.seed,
                               channels_last=job.channels_last).model  # fmt: skip
    plan = Plan.load(job.plan) if job.plan else None
    if before is not None:
        saved = Plan.from_json(checkpoint.describe(before)["plan"])
        if saved.world == job.K:
            plan = plan or saved
        else:  # other stages: AuxNets start as copies of the saved model
            checkpoint.check_model(model, before)
            model.load_state_dict(checkpoint.model_state(before), strict=True)
            init = "fresh" if job.auxnet else "copy"
    given: dict[str, Any] = {
        "example_inputs": x, "cost": job.cost, "method": job.method, "aux_budget": job.aux_budget,
        "aux": job.aux or "derived", "aux_init": init, "threads": 1,
        "aux_dtype": torch.bfloat16 if job.aux_dtype else None, "auxnet": smaller,
        "as_published": job.as_published, "compile": bool(job.options.get("compile")), "exact": job.exact,
        "link": planner_link(job.link),
    }  # fmt: skip
    return parallelize(model, job.K, plan=plan, **given)


def first_weights(spec: str, model: nn.Module) -> str:
    """How AuxNets start by default: consistently if the model is known to be fresh, else as copies.

    A consistent start sets branches of the model to zero, which must not happen to a user's trained weights.
    """
    return "consistent" if sources.kind_of(spec).fresh and trained(model) is None else "copy"


def make_trainer(job: Job, program: Program, total: int, **options: Any) -> Trainer:
    """A trainer for `total` steps of the job; `options` go to `program.trainer`."""
    return program.trainer(
        next_byte_loss if job.data.startswith("text:") else F.cross_entropy,
        optimizer=job.optimizer_factory(program.module),
        scheduler=job.scheduler_factory(total),
        method=job.method,
        **{"total_steps": total, "autocast": torch.bfloat16 if job.timm.amp else None, **options, **job.options},
    )
