"""The command `train`. Its flags are fields of `Job`, of the trainer's `Settings` and of `LoopOptions`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lpcompile.cli.flags import (
    Parser,
    method_help,
    method_summaries,
    refuse_both,
    refuse_two_sizes,
    refuse_unread,
    refuse_without,
    typed,
)
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from lpcompile.training.job import Job

# The trait of a Method without which a flag has no effect.
NEEDED_TRAITS = {
    "beta": "aux",
    "psi": "aux",
    "recouple": "aux",
    "kappa": "kappa",
    "reconstruct": "heads",
    "buffer": "replay_buffers",
    "buffer_policy": "replay_buffers",
    "stash": "double_buffers",
    "slack": "slackens",
    "lockstep": "locksteps",
    "init": "has_aux",
    "aux": "predicts",
    "aux_budget": "has_aux",
    "aux_dtype": "predicts",
    "auxnet": "predicts",
    "warmup": "decouples",
    "warmup_violation": "aux",
    "finish": "inexact",
}


PUBLISHED_JOB = {"init": "fresh", "schedule": "cosine"}  # with --as-published


def add_arguments(parser: Parser) -> None:
    """Flags in the order of the help: what to train, how, and what to write."""
    parser.late_epilog = method_summaries
    add = parser.flag
    for name in ("model", "data", "K"):
        add(name)
    add("replicas", type=int, metavar="R", help="data-parallel copies of the K stages (default 1)")
    add("method", help=lambda: f"{method_help()}; or a recipe of phases, METHOD[OPTION=VALUE]@END,METHOD, with an END "
        "such as 0.5 (of training), 500steps, violation<0.05 or loss<0.5: penalty@0.5,stream")  # fmt: skip
    add("exact", action="store_true", help="refuse methods whose gradients are not plain training's")
    add("epochs")
    add("batch", help="samples a step, over all replicas")
    for name in ("lr", "optimizer"):
        add(name)
    add("weight_decay", type=float)
    add("schedule", help="of the learning rate: one-cycle (default), cosine, steps (a tenth after each third) "
        "or constant")  # fmt: skip
    add("beta", type=_beta, help="weight of the penalty: a number, rising, adaptive or relative (default: by method)")
    add("micro")
    _add_timm(add)
    add("lockstep", action="store_true", help="multiplier without skew: exact order, no speedup")
    add("stash", help="weights that pipedream keeps: all (default, a version for each micro-batch in flight) or 2bw")
    add("slack", type=int, metavar="N", help="micro-batches for which messages of stream may be under way (default "
        "0); 1 hides those of a slow link behind compute, with gradients as much later")  # fmt: skip
    add("psi", help=_psi_help)
    add("kappa", help="how lagrangian keeps κ: stored (default) or auxnet")
    add("clip", type=float, help="largest norm of gradients; 0: never")
    add("warmup", type=int, metavar="STEPS", help="exact steps before decoupling, at most (default: none after a "
        "consistent start, else a tenth of training)")  # fmt: skip
    add("warmup_violation", type=float, metavar="V", help="decouple as soon as λ is this near to X (default 0.05)")
    add("recouple", type=float, metavar="V", help="violation above which exact steps take a decoupled method's place "
        "until it is small again (default 0.5; 0: never)")  # fmt: skip
    add("reconstruct", type=float, metavar="W", help="weight of a term in the local losses of dgl that keeps a stage's "
        "input readable in its output, against lost information (default 0; try 0.5)")  # fmt: skip
    add("buffer", type=int, metavar="N", help="micro-batches in a replay buffer of dgl-async (default 8)")
    add("buffer_policy", help="which of them are drawn: least-reused (default), newest or random")
    add("finish", type=int, metavar="STEPS", help="exact steps at the end, in which the stages settle (default 0)")
    for name in ("aux", "aux_budget", "auxnet", "as_published", "aux_dtype"):
        add(name)
    add("init", help="how AuxNets start; consistent sets dropped residual branches of the model to zero (default for "
        "built-in, torchvision, timm and hf models, which are fresh; else copy)")  # fmt: skip
    add("cost", help="where the plan's costs come from (default measured)")
    add("link", metavar="measure|RATE", help="plan for the link between ranks, as it is before training or of a rate "
        "such as 100mbit: stages are then cut where messages are small (default: messages cost nothing)")  # fmt: skip
    add("plan", metavar="FILE", help="follow a saved plan")
    for name in ("size", "input", "seed", "device"):
        add(name)
    add("arg", action="append", metavar="NAME=VALUE", help="argument for the model's constructor, as num_classes=10")
    add("channels_last", help="weights and images that way: faster convolutions on many devices")
    add("compile", help="run stages and AuxNets by torch.compile; the first step takes longer, by minutes for deep "
        "models")  # fmt: skip
    add("transfer", help="send float32 boundaries as bfloat16, half the bytes, or as int8 with a scale for each "
        "channel, a quarter of the bytes; both round")  # fmt: skip
    add("workers", type=int, help="processes that load images, for each rank (default 0, with GPUs 2)")
    add("timeout")
    add("save", metavar="DIR", help="folder for checkpoints")
    add("save_every", type=int, metavar="N", help="steps between checkpoints (default: at the end)")
    add("keep", type=int, metavar="N", help="checkpoints to keep (default 2)")
    add("save_strict", action="store_true", help="end the run when a checkpoint cannot be written, as on a full disk "
        "(default: try again at the next one)")  # fmt: skip
    add("resume", action="store_true", help="go on from the newest whole checkpoint in --save, if any")
    add("log", metavar="FILE", help="numbers every --log-every steps, as JSON lines or (FILE.csv) as CSV")
    add("log_every", type=int, metavar="N", help="steps between log lines (default 10)")
    add("tensorboard", metavar="DIR", help="write TensorBoard events, where it is installed")
    add("wandb", metavar="PROJECT", help="log to Weights & Biases, where it is installed")
    add("trace", metavar="FILE", help="a Chrome trace of all ranks, for Perfetto")
    add("evaluate_every", type=int, metavar="EPOCHS", help="epochs between evaluations (default 1)")
    add("best", metavar="FIGURE", help="keep the checkpoint of the best evaluation in the folder best of --save: test "
        "accuracy, test loss")  # fmt: skip
    add("patience", type=int, metavar="N", help="end after so many evaluations without a better one (default 0: never)")
    add("load_best", action="store_true", help="end with the best weights")


def _psi_help() -> str:
    from lpcompile.runtime.penalty.psi import KINDS

    first, *others = KINDS
    return f"penalty function: {', '.join([f'{first} (default)', *others])}"


def _add_timm(add: Callable[..., None]) -> None:
    """The flags of `TimmRecipe`, named as in timm."""
    add("opt", metavar="NAME", help="an optimizer of timm (instead of --optimizer): lamb, adamw, ...; biases and norms "
        "have no weight decay")  # fmt: skip
    add("sched", metavar="NAME", help="a schedule of timm (instead of --schedule): cosine, step, poly, ...")
    add("warmup_epochs", type=int, metavar="N", help="epochs in which --sched rises to --lr (default 0)")
    add("mixup", type=float, metavar="ALPHA", help="timm's Mixup of batches (default 0: off)")
    add("cutmix", type=float, metavar="ALPHA", help="timm's CutMix of batches (default 0: off)")
    add("smoothing", type=float, metavar="SHARE", help="label smoothing (default 0)")
    add("aa", metavar="POLICY", help="timm's AutoAugment or RandAugment: rand-m9-mstd0.5-inc1")
    add("reprob", type=float, metavar="P", help="probability of timm's random erasing (default 0)")
    add("model_ema", action="store_true", help="keep timm's moving average of the weights: it is evaluated as 'ema "
        "test accuracy', and `export --ema` writes it")  # fmt: skip
    add("model_ema_decay", type=float, metavar="D", help="(default 0.9998)")
    add("amp", action="store_true", help="compute in bfloat16 where torch's autocast does")


def _beta(text: str) -> float | str:
    return text if text in ("rising", "adaptive", "relative") else float(text)


def run(arguments: argparse.Namespace) -> int:
    from lpcompile.runtime.engine.settings import Settings
    from lpcompile.runtime.loop.options import LoopOptions
    from lpcompile.runtime.penalty.published import METHOD
    from lpcompile.training.job import Job
    from lpcompile.training.timm_recipe import TimmRecipe
    from lpcompile.training.train import train

    options = typed(arguments, Settings)
    published = {"method": METHOD, **PUBLISHED_JOB} if arguments.as_published else {}
    given = {**published, **typed(arguments, Job)}
    job = Job(
        **given,
        options=options,
        timm=TimmRecipe(**typed(arguments, TimmRecipe)),
        watch=LoopOptions(**typed(arguments, LoopOptions)),
    )
    _check(arguments, job)
    try:
        train(job)
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":
            print(_interrupted(job), file=sys.stderr)
        raise
    return 0


def _interrupted(job: Job) -> str:
    """What is left of a run that was ended by Ctrl-C, and the command that goes on; two lines."""
    from lpcompile.runtime.checkpoint.checkpoint import latest

    started = ["torchrun", "--nproc-per-node", os.environ.get("LOCAL_WORLD_SIZE", str(job.K * job.replicas))]
    words = [*(started if "RANK" in os.environ else ["python"]), "-m", "lpcompile", *sys.argv[1:]]
    if job.watch.save is None:
        return f"\nstopped: nothing was saved, for want of --save DIR\nbegin again: {shlex.join(words)} --save DIR"
    found = latest(Path(job.watch.save))
    saved = f"the newest checkpoint is {found}" if found else f"nothing was saved in {job.watch.save} yet"
    return f"\nstopped: {saved}\ngo on: {shlex.join([*words, *([] if job.watch.resume else ['--resume'])])}"


def _check(arguments: argparse.Namespace, job: Job) -> None:
    """Refuse flags that this job would ignore. `Job.check` checks their values."""
    from lpcompile.core.plan import Plan
    from lpcompile.runtime.methods import get_method

    if job.K == 1:
        refuse_unread(arguments, "-K 1, which is plain training", unread=(*NEEDED_TRAITS, "link"))
    if job.plan is not None:
        refuse_unread(arguments, "--plan", unread=("cost", "link", "aux", "aux_budget", "aux_dtype", "init"))
    if job.auxnet is not None:
        refuse_unread(arguments, f"--auxnet {job.auxnet}", unread=("aux", "aux_budget", "init"))
    methods = [get_method(phase.method) for phase in job.recipe]
    unread = [name for name, trait in NEEDED_TRAITS.items() if not any(getattr(m, trait) for m in methods)]
    refuse_unread(arguments, f"--method {job.method}", unread=unread)
    for one, other in (("opt", "optimizer"), ("sched", "schedule")):
        refuse_both(arguments, one, other)
    refuse_two_sizes(arguments)
    if job.data.startswith("text:"):
        refuse_unread(arguments, f"--data {job.data}", unread=("size",))
    refuse_without(arguments, "model_ema", ("model_ema_decay",))
    refuse_without(arguments, "save", ("save_every", "keep", "save_strict"))
    if not any(getattr(arguments, name) for name in ("log", "tensorboard", "wandb")):
        refuse_unread(arguments, "neither --log nor --tensorboard nor --wandb", unread=("log_every",))
    if job.plan is not None:
        K = Plan.load(job.plan).K
        if K != job.K:
            raise UsageError(f"--plan {job.plan} has {K} stages and -K is {job.K}; give -K {K}, or another plan")
