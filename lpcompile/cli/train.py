"""The command `train`. Its flags are fields of `Job`, of the trainer's `Settings` and of `LoopOptions`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lpcompile.cli.flags import Parser, method_summaries, refuse_unread, refuse_without, typed
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from lpcompile.training.job import Job

# The attribute that a Method needs for a flag to mean something.
NEEDED_TRAITS = {
    "beta": "aux",
    "psi": "aux",
    "kappa": "kappa",
    "buffer": "replay",
    "buffer_policy": "replay",
    "stash": "double_buffers",
    "lockstep": "locksteps",
}


def add_arguments(parser: Parser) -> None:
    """Flags in the order in which one meets them: what to train, how, and what to keep of it."""
    parser.late_epilog = method_summaries
    add = parser.flag
    for name in ("model", "data", "K"):
        add(name)
    add("replicas", type=int, metavar="R", help="data-parallel copies of the K stages (default 1)")
    for name in ("method", "epochs"):
        add(name)
    add("batch", help="samples a step, over all replicas")
    for name in ("lr", "optimizer"):
        add(name)
    add("weight_decay", type=float)
    add("schedule", help="of the learning rate: one-cycle (default), cosine or constant")
    add("beta", type=_beta, help="weight of the penalty: a number, rising, adaptive or relative (default: by method)")
    add("micro")
    add("lockstep", action="store_true", help="multiplier without skew: exact order, no speedup")
    add("stash", help="weights that pipedream keeps: all (default, a version for each micro-batch in flight) or 2bw")
    add("psi", help="scaled (default), l2, l1 or linf")
    add("kappa", help="how lagrangian keeps κ: stored (default) or auxnet")
    add("clip", type=float, help="largest norm of gradients; 0: never")
    add("warmup", type=int, metavar="STEPS", help="exact steps before decoupling, at most (default: none after a "
        "consistent start, else a tenth of training)")  # fmt: skip
    add("warmup_violation", type=float, metavar="V", help="decouple as soon as λ is this near to X (default 0.05)")
    add("buffer", type=int, metavar="N", help="micro-batches in a replay buffer of dgl-async (default 8)")
    add("buffer_policy", help="which of them are drawn: least-reused (default), newest or random")
    add("finish", type=int, metavar="STEPS", help="exact steps at the end, in which the stages settle (default 0)")
    for name in ("aux", "aux_budget", "aux_dtype"):
        add(name)
    add("init", help="how AuxNets start; consistent sets dropped residual branches of the model to zero (default for "
        "built-in, torchvision, timm and hf models, which are fresh; else copy)")  # fmt: skip
    add("cost", help="where the plan's costs come from (default measured)")
    add("plan", metavar="FILE", help="follow a saved plan")
    for name in ("size", "input", "seed", "device"):
        add(name)
    add("channels_last", help="weights and images that way: faster convolutions on many devices")
    add("compile", help="run stages and AuxNets by torch.compile; the first step takes longer, by minutes for deep "
        "models")  # fmt: skip
    add("transfer", help="send float32 boundaries as bfloat16: half the bytes, rounded")
    add("workers", type=int, help="processes that load images, for each rank (default 0, with GPUs 2)")
    add("timeout")
    add("save", metavar="DIR", help="folder for checkpoints")
    add("save_every", type=int, metavar="N", help="steps between checkpoints (default: at the end)")
    add("keep", type=int, metavar="N", help="checkpoints to keep (default 2)")
    add("resume", action="store_true", help="go on from the newest checkpoint in --save, if any")
    add("log", metavar="FILE", help="numbers every --log-every steps, as JSON lines or (FILE.csv) as CSV")
    add("log_every", type=int, metavar="N", help="steps between log lines (default 10)")
    add("tensorboard", metavar="DIR", help="write TensorBoard events, where it is installed")
    add("trace", metavar="FILE", help="a Chrome trace of all ranks, for Perfetto")
    add("evaluate_every", type=int, metavar="EPOCHS", help="epochs between evaluations (default 1)")


def _beta(text: str) -> float | str:
    return text if text in ("rising", "adaptive", "relative") else float(text)


def run(arguments: argparse.Namespace) -> int:
    import torch

    from lpcompile.runtime.engine.settings import Settings
    from lpcompile.runtime.loop.options import LoopOptions
    from lpcompile.training.job import Job
    from lpcompile.training.train import train

    options = typed(arguments, Settings)
    if "transfer" in options:
        options["transfer"] = torch.bfloat16
    job = Job(**typed(arguments, Job), options=options, watch=LoopOptions(**typed(arguments, LoopOptions)))
    _check(arguments, job)
    train(job)
    return 0


def _check(arguments: argparse.Namespace, job: Job) -> None:
    """Refuse flags that this job would ignore. Whether their values are right, `Job.check` says."""
    from lpcompile.core.plan import Plan
    from lpcompile.runtime.methods import get_method

    method = get_method(job.method)
    unread = [name for name, trait in NEEDED_TRAITS.items() if not getattr(method, trait)]
    refuse_unread(arguments, f"--method {method.name}", unread=unread)
    refuse_without(arguments, "save", ("save_every", "keep"))
    if job.plan is not None:
        refuse_unread(arguments, "--plan", unread=("cost", "aux", "aux_budget", "aux_dtype", "init"))
        K = Plan.load(job.plan).K
        if K != job.K:
            raise UsageError(f"--plan {job.plan} has {K} stages and -K is {job.K}; give -K {K}, or another plan")
