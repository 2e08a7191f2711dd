"""The commands `train` and `export`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from lpcompile.errors import UsageError


def add_train(parser: argparse.ArgumentParser) -> None:
    """Options in the order in which one meets them: what, how, and what is kept of it."""
    add = parser.add_argument
    add("model", metavar="MODEL", help="a built-in model, torchvision:NAME, timm:NAME, file.py:factory, ...")
    add("--data", default="digits", metavar="DIR|digits", help="a folder of images (train/CLASS/..., test/CLASS/...), "
        "or scikit-learn's digits (default)")  # fmt: skip
    add("-K", type=int, default=2, help="number of stages, one process each (default 2)")
    add("--replicas", type=int, default=1, metavar="R", help="data-parallel copies of the K stages (default 1)")
    add("--method", default="multiplier", help="multiplier (default), penalty, penalty-stored, lagrangian, bp, gpipe, "
        "1f1b, zb, pipedream, ddg, fr, dgl or dgl-async")  # fmt: skip
    add("--epochs", type=int, help="passes over the data")
    add("--batch", type=int, help="samples a step, over all replicas")
    add("--lr", type=float, help="largest learning rate")
    add("--optimizer", help="sgd (default) or adamw")
    add("--weight-decay", type=float)
    add("--schedule", help="of the learning rate: one-cycle (default), cosine or constant")
    add("--beta", type=_beta, help="weight of the penalty: a number, rising, adaptive or relative (default: by method)")
    add("--micro", type=int, help="micro-batches a step")
    add("--lockstep", action="store_true", default=None, help="multiplier without skew: exact order, no speedup")
    add("--stash", help="weights that pipedream keeps: all (default, a version for each micro-batch in flight) or 2bw")
    add("--psi", help="scaled (default), l2, l1 or linf")
    add("--kappa", help="how lagrangian keeps κ: stored (default) or auxnet")
    add("--clip", type=float, help="largest norm of gradients; 0: never")
    add("--warmup", type=int, metavar="STEPS", help="exact steps before decoupling, at most (default: none after a "
        "consistent start, else a tenth of training)")  # fmt: skip
    add("--warmup-violation", type=float, metavar="V", help="decouple as soon as λ is this near to X (default 0.05)")
    add("--buffer", type=int, metavar="N", help="micro-batches in a replay buffer of dgl-async (default 8)")
    add("--buffer-policy", help="which of them are drawn: least-reused (default), newest or random")
    add("--finish", type=int, metavar="STEPS", help="exact steps at the end, in which the stages settle (default 0)")
    add("--aux", choices=["derived", "tied", "recursive", "recursive-shared"], help="form of the AuxNets")
    add("--aux-budget", type=float, metavar="SHARE", help="cost of an AuxNet as a share of its stage's (default 0.1; "
        "penalty and lagrangian with a consistent start 0.05)")  # fmt: skip
    add("--aux-dtype", choices=["bf16"], help="AuxNets compute in bfloat16; all else stays as it is")
    add("--init", choices=["fresh", "copy", "consistent"], help="how AuxNets start; consistent sets dropped residual "
        "branches of the model to zero (default for built-in, torchvision, timm and hf models, which are fresh; "
        "else copy)")  # fmt: skip
    add("--cost", choices=["measured", "flops"], help="where the plan's costs come from (default measured)")
    add("--plan", metavar="FILE", help="follow a saved plan")
    add("--size", type=int, metavar="PX", help="height and width of the images")
    add("--input", metavar="SHAPE", help="the model's input without the batch, where nothing tells it: 3x32x32")
    add("--seed", type=int)
    add("--device", help="cpu (default) or cuda: one GPU a rank")
    add("--channels-last", action="store_true", default=None, help="weights and images that way: faster "
        "convolutions on many devices")  # fmt: skip
    add("--compile", action="store_true", default=None, help="run stages and AuxNets by torch.compile; the first step "
        "takes longer, by minutes for deep models")  # fmt: skip
    add("--transfer", choices=["bf16"], help="send float32 boundaries as bfloat16: half the bytes, rounded")
    add("--workers", type=int, help="processes that load images, for each rank (default 0, with GPUs 2)")
    add("--timeout", type=float, metavar="S", help="seconds after which a rank that does not move is taken for dead")
    add("--save", metavar="DIR", help="folder for checkpoints")
    add("--save-every", type=int, metavar="N", help="steps between checkpoints (default: at the end)")
    add("--keep", type=int, metavar="N", help="checkpoints to keep (default 2)")
    add("--resume", action="store_true", default=None, help="go on from the newest checkpoint in --save, if any")
    add("--log", metavar="FILE", help="numbers every --log-every steps, as JSON lines or (FILE.csv) as CSV")
    add("--log-every", type=int, metavar="N", help="steps between log lines (default 10)")
    add("--tensorboard", metavar="DIR", help="write TensorBoard events, where it is installed")
    add("--trace", metavar="FILE", help="a Chrome trace of all ranks, for Perfetto")
    add("--evaluate-every", type=int, metavar="EPOCHS", help="epochs between evaluations (default 1)")
    parser.set_defaults(run=_train)


OPTIONS = ("beta", "micro", "lockstep", "stash", "psi", "kappa", "clip", "warmup", "warmup_violation", "finish",
           "buffer", "buffer_policy", "compile")  # fmt: skip
WATCH = ("save", "save_every", "keep", "resume", "log", "log_every", "tensorboard", "trace", "evaluate_every")
OTHER = ("model", "data", "K", "replicas", "method", "epochs", "batch", "lr", "optimizer", "weight_decay", "schedule",
         "aux", "aux_budget", "aux_dtype", "init", "cost", "plan", "size", "input", "seed", "device", "workers",
         "channels_last", "timeout")  # fmt: skip


def _beta(text: str) -> float | str:
    return text if text in ("rising", "adaptive", "relative") else float(text)


def _train(arguments: argparse.Namespace) -> int:
    import torch

    from lpcompile.runtime.loop.options import LoopOptions
    from lpcompile.training.job import Job
    from lpcompile.training.train import train

    def given(names: tuple[str, ...]) -> dict[str, Any]:
        return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}

    transfer = {"transfer": torch.bfloat16} if arguments.transfer else {}
    job = Job(**given(OTHER), options=given(OPTIONS) | transfer, watch=LoopOptions(**given(WATCH)))
    train(job)
    return 0


def add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="CKPT", help="a checkpoint, or a folder of them (the newest is taken)")
    parser.add_argument("file", metavar="FILE", help="the safetensors file to write")
    parser.set_defaults(run=_export)


def _export(arguments: argparse.Namespace) -> int:
    from lpcompile.runtime.checkpoint.checkpoint import export

    file = Path(arguments.file)
    if file.suffix != ".safetensors":
        raise UsageError(f"{file} must end with .safetensors: that is the format that is written")
    count = export(Path(arguments.checkpoint), file)
    print(f"{count} tensors written to {file}", file=sys.stderr)
    return 0
