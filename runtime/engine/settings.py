"""Everything that can be asked of training, checked once, with defaults that do not collapse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

import torch

from lpcompile.errors import UsageError
from lpcompile.runtime.penalty import psi as psi_
from lpcompile.runtime.penalty.beta import Beta, parse

BUFFER_POLICIES = ("least-reused", "newest", "random")


@dataclass(frozen=True)
class Settings:
    """The options of `program.trainer`.

    micro: micro-batches a step (`multiplier`'s skew is counted in them); None: 1 where K = 1 or the method is neither
        skewed nor a pipeline, else up to 4 of at least 8 samples (more than K only where they take 15 ms), or up to 2K
        that divide the batch where it is one (`gpipe`, `1f1b`, `zb`; see `lpcompile.core.pipeline_order`). lockstep:
        `multiplier` without skew.
    stash: the weights that `pipedream` keeps, "all" (one version for each micro-batch in flight) or "2bw" (two).
    recursive: AuxNets start from the model's input. kappa: how `lagrangian` keeps κ, "stored" or "auxnet".
    psi: "scaled", "l2", "l1" or "linf". beta: see `lpcompile.runtime.penalty.beta`.
    lam_weight: the penalty's pull on λ against its pull on X.
    noise: standard deviation of Gaussian noise on λ, as a share of λ's own size.
    lam_lr, kappa_lr: step sizes for stored λ and for κ; None: the optimizer's learning rate.
    clip: largest norm of gradients; None: 2 for decoupled methods, none for exact and delayed ones and K = 1; 0: never.
        clip_scope: "rank" clips each stage by itself, "global" by the norm over all stages. AuxNets are clipped each by
        itself.
    accumulate: calls of `step` for one step of the optimizers. autocast: torch.bfloat16 or torch.float16 (with loss
        scaling). checkpoint: recompute activations, on all ranks (True) or on some.
    transfer: torch.bfloat16 halves what float32 boundaries send, and rounds it. compile: run stages and AuxNets by
        torch.compile, which takes its time in the first step; a backward then has no two parts for `zb`.
    warmup: exact steps before decoupling, at most so many; None: none where the AuxNets start consistently (or are the
        user's), else a tenth of training. warmup_violation: or until λ is this near to X.
    finish: so many exact steps (`bp`) at the end, in which the stages settle on each other's real outputs, where the
        length of training is known.
    collapse: "stop" or "warn" when a boundary's values stop to vary; check_every: steps between such checks.
    buffer: micro-batches that a replay buffer of `dgl-async` holds; buffer_policy: which it gives and gives up, see
        `lpcompile.runtime.comm.buffer.Buffer`.
    total_steps: how long training lasts, for a β that rises with it; `fit` knows it by itself.
    """

    micro: int | None = None
    lockstep: bool = False
    stash: str = "all"
    recursive: bool = False
    kappa: str = "stored"
    psi: str = "scaled"
    beta: Beta | float | str | dict[int, float] | None = None
    lam_weight: float = 1.0
    noise: float = 0.0
    lam_lr: float | None = None
    kappa_lr: float | None = None
    clip: float | None = None
    clip_scope: str = "rank"
    accumulate: int = 1
    autocast: torch.dtype | None = None
    transfer: torch.dtype | None = None
    compile: bool = False
    checkpoint: bool | Sequence[int] = False
    warmup: int | None = None
    warmup_violation: float = 0.05
    finish: int = 0
    collapse: str = "stop"
    check_every: int = 50
    buffer: int = 8
    buffer_policy: str = "least-reused"
    total_steps: int | None = None

    def rule(self, default: str = "rising", K: int = 2) -> Beta:
        """β's rule; the method's default is for the scale-free ψ."""
        return parse(self.beta, default if self.psi == "scaled" else "rising", K)

    def recomputes(self, rank: int) -> bool:
        return self.checkpoint if isinstance(self.checkpoint, bool) else rank in self.checkpoint

    def clip_norm(self, exact: bool) -> float:
        """0 where nothing is clipped."""
        if self.clip is None:
            return 0.0 if exact else 2.0
        return float(self.clip)


def settings(options: dict[str, Any]) -> Settings:
    names = [f.name for f in fields(Settings)]
    for name in options:
        if name not in names:
            close = get_close_matches(name, names, n=1, cutoff=0.0)[0]
            raise UsageError(
                f"the trainer has no option {name!r}; the closest is {close!r}, all are {', '.join(names)}"
            )
    found = Settings(**options)
    psi_.check(found.psi)
    parse(found.beta)
    _one_of("kappa", found.kappa, ("stored", "auxnet"))
    _one_of("stash", found.stash, ("all", "2bw"))
    _one_of("clip_scope", found.clip_scope, ("rank", "global"))
    _one_of("collapse", found.collapse, ("stop", "warn"))
    _one_of("autocast", found.autocast, (None, torch.bfloat16, torch.float16))
    _one_of("transfer", found.transfer, (None, torch.bfloat16))
    _one_of("buffer_policy", found.buffer_policy, BUFFER_POLICIES)
    _at_least("buffer", found.buffer, 1)
    _at_least("micro", found.micro, 1)
    _at_least("accumulate", found.accumulate, 1)
    _at_least("warmup", found.warmup, 0)
    _at_least("finish", found.finish, 0)
    _at_least("check_every", found.check_every, 1)
    if found.stash == "2bw" and found.accumulate > 1:
        raise UsageError(
            f"stash='2bw' with accumulate={found.accumulate}: it gathers gradients over the micro-batches of a step; "
            f"give {found.accumulate} times as many samples and micro-batches to a step instead"
        )
    for name in ("noise", "lam_weight", "clip", "lam_lr", "kappa_lr", "warmup_violation"):
        _at_least(name, getattr(found, name), 0)
    return found


def asdict_shallow(given: Settings) -> dict[str, Any]:
    """Options by name, as `settings` takes them."""
    return {f.name: getattr(given, f.name) for f in fields(given)}


def _one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    if value not in known:
        raise UsageError(f"{name}={value!r} is not one of {', '.join(map(str, known))}")


def _at_least(name: str, value: Any, least: int) -> None:
    whole = isinstance(least, int) and name in ("micro", "accumulate", "warmup", "finish", "check_every", "buffer")
    kinds = (int,) if whole else (int, float)
    if value is not None and (not isinstance(value, kinds) or isinstance(value, bool) or value < least):
        raise UsageError(f"{name}={value!r} is not a {'whole ' if whole else ''}number of at least {least}")
