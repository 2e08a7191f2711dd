"""Options of a bench, and what can be refused before it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from lpcompile import sources
from lpcompile.bench.contenders import CONTENDERS
from lpcompile.bench.work import WorkSpec
from lpcompile.errors import UsageError
from lpcompile.passes.graph.batch import batch_size
from lpcompile.runtime.launch import launch
from lpcompile.sources.inputs import closest

DEFAULT_STEPS = 20


@dataclass(frozen=True)
class BenchRequest:
    """Options of a bench. `contenders` are names; `steps` are counted ones, of each."""

    model: str
    K: int = 2
    contenders: tuple[str, ...] = CONTENDERS
    batch: int = 64
    steps: int = DEFAULT_STEPS
    optimizer: str = "sgd"
    input: str | None = None
    cost: str = "measured"
    seed: int = 0
    device: str = "cpu"
    channels_last: bool = False
    compile: bool = False
    transfer: str | None = None
    aux_dtype: str | None = None
    init: str | None = None
    timeout: float = launch.TIMEOUT

    @property
    def work(self) -> WorkSpec:
        cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
        return WorkSpec(self.model, self.K, self.batch, self.input, self.optimizer, self.seed, self.device, cores,
                    self.channels_last, self.compile, self.transfer, self.aux_dtype, self.init)  # fmt: skip

    def check(self) -> None:
        """Refuse wrong options before any process is started."""
        for name in self.contenders:
            if name not in CONTENDERS:
                near = closest(name, list(CONTENDERS))
                hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(CONTENDERS)}"
                raise UsageError(f"there is no contender {name!r}; {hint}")
        if self.K < 2:
            raise UsageError(f"-K {self.K}: a bench needs 2 ranks or more; plain training is always beside them")
        if self.batch < 1 or self.steps < 1:
            raise UsageError(f"--batch {self.batch} --steps {self.steps}: both are numbers of 1 or more")
        if self.optimizer not in ("sgd", "adamw"):
            raise UsageError(f"--optimizer {self.optimizer} is not one of sgd, adamw")
        if not self.timeout > 0:
            raise UsageError(f"--timeout {self.timeout:g}: give seconds, more than 0")
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            raise UsageError(f"--device {self.device} is neither cpu nor cuda")
        if launch.torchrun_rank() is not None:
            raise UsageError("bench starts its own processes, K for each contender: run it without torchrun")


def check_model(request: BenchRequest) -> None:
    """Refuse an unknown model, or one that does not take such batches, before any process is started."""
    source = sources.load(request.model, batch=request.batch, input_shape=request.input, device="meta",
                          channels_last=request.channels_last)  # fmt: skip
    leaves = pytree.tree_leaves((source.example_args, source.example_kwargs))
    given = batch_size([t for t in leaves if isinstance(t, torch.Tensor)])
    if given not in (None, request.batch):
        raise UsageError(
            f"{request.model} gives example inputs of {given} samples, not of {request.batch}; ask for --batch "
            f"{given}, or let example_inputs be a function of `batch`"
        )
