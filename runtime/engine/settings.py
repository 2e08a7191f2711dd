"""The options of training, checked once, with defaults that do not collapse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from lpcompile.errors import UsageError, closest
from lpcompile.runtime.penalty import psi as psi_
from lpcompile.runtime.penalty.beta import Beta, parse

TRANSFER_NAMES = {"bf16": torch.bfloat16, "int8": torch.int8}
TRANSFERS = (None, *TRANSFER_NAMES.values())
REDUCTIONS = ("samples", "labels", "next labels", "sum")
# Defaults that are objects of their own: a user's own "scaled" is another one, and replaces that of `as_published`.
SCALED, GRADIENT = ("".join([*word]) for word in ("scaled", "gradient"))
BUFFER_POLICIES = ("least-reused", "newest", "random")


@dataclass(frozen=True)
class Settings:
    """The options of `program.trainer`.

    micro: micro-batches a step (`multiplier`'s skew is counted in them). The default is the method's
        `default_micro`: `multiplier` up to K of at least 8 samples (16 where K = 2); `stream` up to K of at least 16;
        `penalty` and `lagrangian` 2 of at least 16 where a batch's activations take 64 MiB; `zbh2` 2 to 2K, of at
        least 16 where there is BatchNorm; other pipelines (`gpipe`, `1f1b`, `zb`) K to 2K that divide the batch;
        `pipedream` with "2bw" K; else 1. Of the planned method, what the plan says. lockstep: `multiplier` without
        skew.
    stash: the weights that `pipedream` keeps, "all" (one version for each micro-batch in flight) or "2bw" (two).
    slack: by how many micro-batches more than it must each rank of `stream` follows the one below, so that messages
        have so much longer on a slow link; gradients are as much later.
    recursive: AuxNets start from the model's input. kappa: how `lagrangian` keeps κ, "stored" or "auxnet".
    psi: a penalty function by its name in `lpcompile.runtime.penalty.psi`. beta: see `lpcompile.runtime.penalty.beta`.
    distil: AuxNets descend λ's own "gradient", or regress on λ after its step of size `lam_lr` (the "target"), which is
        the same gradient times twice that step size.
    lam_weight: weight of the penalty's λ side against its X side.
    noise: standard deviation of Gaussian noise on λ, as a share of λ's own size.
    lam_lr, kappa_lr: step sizes for stored λ and for κ; the optimizer's learning rate by default.
    clip: largest norm of gradients, 0 for no limit; default 2, but 0 for exact and delayed methods and for K = 1.
        clip_scope: "global" clips by the norm over all stages, as plain training does (the default of exact methods;
        ranks wait for each other's norms), "rank" each stage by its own norm (the default of all others). AuxNets are
        clipped each by itself.
    reduction: what the loss is a mean over, "samples" (the default for a loss_fn), "labels" (those that are not -100),
        "next labels" (the same of language models) or a "sum": the weights of micro-batches (`engine.batches`). For the
        model's own loss it is measured.
    accumulate: calls of `step` per optimizer step. autocast: torch.bfloat16 or torch.float16 (with loss
        scaling). checkpoint: recompute activations, on all ranks (True) or on some.
    transfer: torch.bfloat16 ("bf16") halves the messages of float32 boundaries, and rounds them; torch.int8 ("int8")
        sends a quarter, see `lpcompile.runtime.comm.quantize`. compile: run stages and AuxNets
        by torch.compile, which takes minutes before the first step; `zb` and `zbh2` then do not split the backward.
    warmup: largest number of exact steps before decoupling; default 0 where AuxNets start consistently or are the
        user's, else a tenth of training, at most 200. warmup_violation: the violation at which the warm-up ends early.
    finish: number of exact steps at the end (`1f1b`, or `zbh2` where a batch has no equal parts), in which stages
        settle on each other's real outputs; needs the length of training.
    recouple: the violation above which exact steps take a decoupled method's place until it is small again, see
        `lpcompile.runtime.health.coupling`; 0: never.
    collapse: "stop" or "warn" when a boundary's values no longer vary over samples and exact steps do not help;
        check_every: steps between checks.
    reconstruct: weight of a reconstruction term in the local losses of `dgl`, see
        `lpcompile.runtime.penalty.reconstruction`; 0: none.
    buffer: capacity of a replay buffer of `dgl-async`, in micro-batches; buffer_policy: which of them it gives and
        evicts, see `lpcompile.runtime.comm.buffer.Buffer`.
    total_steps: length of training, for a β that rises with it; `fit` fills it in.
    """

    micro: int | None = None
    lockstep: bool = False
    stash: str = "all"
    slack: int = 0
    recursive: bool = False
    kappa: str = "stored"
    psi: str = SCALED
    beta: Beta | float | str | dict[int, float] | None = None
    lam_weight: float = 1.0
    noise: float = 0.0
    distil: str = GRADIENT
    lam_lr: float | None = None
    kappa_lr: float | None = None
    clip: float | None = None
    clip_scope: str | None = None
    reduction: str | None = None
    accumulate: int = 1
    autocast: torch.dtype | None = None
    transfer: torch.dtype | None = None
    compile: bool = False
    checkpoint: bool | Sequence[int] = False
    warmup: int | None = None
    warmup_violation: float = 0.05
    finish: int = 0
    recouple: float = 0.5
    collapse: str = "stop"
    check_every: int = 50
    reconstruct: float = 0.0
    buffer: int = 8
    buffer_policy: str = "least-reused"
    total_steps: int | None = None

    def rule(self, default: str = "rising", K: int = 2) -> Beta:
        """β's rule; the method's default is for the scale-free ψ."""
        return parse(self.beta, default if self.psi == "scaled" else "rising", K)

    def recomputes(self, rank: int) -> bool:
        return self.checkpoint if isinstance(self.checkpoint, bool) else rank in self.checkpoint

    def clip_norm(self, exact: bool) -> float:
        """Largest norm of gradients; 0 for no limit."""
        if self.clip is None:
            return 0.0 if exact else 2.0
        return float(self.clip)


def settings(options: dict[str, Any]) -> Settings:
    names = [f.name for f in fields(Settings)]
    for name in options:
        if name not in names:
            raise UsageError(
                f"the trainer has no option {name!r}; the closest is {closest(name, names)!r}, all are "
                f"{', '.join(names)}"
            )
    if isinstance(options.get("transfer"), str) and options["transfer"] in TRANSFER_NAMES:
        options = {**options, "transfer": TRANSFER_NAMES[options["transfer"]]}
    found = Settings(**options)
    psi_.check(found.psi)
    parse(found.beta)
    _one_of("distil", found.distil, ("gradient", "target"))
    _one_of("kappa", found.kappa, ("stored", "auxnet"))
    _one_of("stash", found.stash, ("all", "2bw"))
    _one_of("reduction", found.reduction, (None, *REDUCTIONS))
    _one_of("clip_scope", found.clip_scope, (None, "rank", "global"))
    _one_of("collapse", found.collapse, ("stop", "warn"))
    _one_of("autocast", found.autocast, (None, torch.bfloat16, torch.float16))
    _one_of("transfer", found.transfer, TRANSFERS)
    _one_of("buffer_policy", found.buffer_policy, BUFFER_POLICIES)
    _at_least("buffer", found.buffer, 1)
    _at_least("micro", found.micro, 1)
    _at_least("accumulate", found.accumulate, 1)
    _at_least("slack", found.slack, 0)
    _at_least("warmup", found.warmup, 0)
    _at_least("finish", found.finish, 0)
    _at_least("check_every", found.check_every, 1)
    if found.stash == "2bw" and found.accumulate > 1:
        raise UsageError(
            f"stash='2bw' with accumulate={found.accumulate}: it gathers gradients over the micro-batches of a step; "
            f"give {found.accumulate} times as many samples and micro-batches to a step instead"
        )
    for name in ("noise", "lam_weight", "clip", "lam_lr", "kappa_lr", "warmup_violation", "recouple", "reconstruct"):
        _at_least(name, getattr(found, name), 0)
    return found


def refuse_inexact_options(own: Settings) -> None:
    """For exact=True: options that change plain training's gradients whatever the method."""
    if own.transfer is not None:
        raise UsageError(f"exact=True, and transfer={own.transfer} rounds gradients between ranks; leave it out")
    if own.clip and own.clip_scope == "rank":
        raise UsageError(
            "exact=True, and clip_scope='rank' clips every stage by its own norm, which plain training does not; leave "
            "it out"
        )


def asdict_shallow(given: Settings) -> dict[str, Any]:
    """Options by name, as `settings` takes them."""
    return {f.name: getattr(given, f.name) for f in fields(given)}


def _one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    if value not in known:
        raise UsageError(f"{name}={value!r} is not one of {', '.join(map(str, known))}")


def _at_least(name: str, value: Any, least: int) -> None:
    counts = ("micro", "accumulate", "warmup", "finish", "check_every", "buffer", "slack")
    whole = isinstance(least, int) and name in counts
    kinds = (int,) if whole else (int, float)
    if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) or value < least):
        raise UsageError(f"{name}={value!r} is not a {'whole ' if whole else ''}number of at least {least}")
