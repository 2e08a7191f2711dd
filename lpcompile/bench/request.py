"""Options of a bench, and what can be refused before it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch
from torch.utils import _pytree as pytree

from lpcompile import sources
from lpcompile.bench.contenders.ways import CONTENDERS, exists
from lpcompile.bench.contenders.work import WorkSpec
from lpcompile.errors import UsageError
from lpcompile.passes.graph.batch import batch_size
from lpcompile.runtime.launch import launch
from lpcompile.runtime.launch.hosts import bits_per_s, refuse_without_rights
from lpcompile.sources.inputs import closest
from lpcompile.training import data

DEFAULT_STEPS = 20
DEFAULT_EPOCHS = 20
LEARNING_RATES = {"sgd": 0.05, "adamw": 1e-3}  # constant, of training to an accuracy


@dataclass(frozen=True)
class BenchRequest:
    """Options of a bench. `contenders` are names; `steps` are counted ones, of each. hosts: network namespaces that the
    ranks are spread over, 0 for none; rate: those of the links between them, one after another, as tc writes them."""

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
    hosts: int = 0
    rate: tuple[str, ...] = ()
    patient: bool = False
    to_accuracy: float | None = None
    data: str = "digits"
    epochs: int = DEFAULT_EPOCHS
    lr: float | None = None

    @property
    def learning_rate(self) -> float:
        return LEARNING_RATES[self.optimizer] if self.lr is None else self.lr

    @property
    def work_on_data(self) -> WorkSpec:
        """On the data set. AuxNets start as copies: a plan that others follow sets nothing in their models to zero."""
        return replace(self.work, data=self.data, lr=self.learning_rate, init="copy")

    @property
    def work(self) -> WorkSpec:
        cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
        return WorkSpec(self.model, self.K, self.batch, self.input, self.optimizer, self.seed, self.device, cores,
                    self.channels_last, self.compile, self.transfer, self.aux_dtype, self.init)  # fmt: skip

    def check(self) -> None:
        """Refuse wrong options before any process is started."""
        for name in self.contenders:
            if not exists(name):
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
        if self.to_accuracy is not None:
            self._check_accuracy()
        if self.device.partition(":")[0] not in ("cpu", "cuda"):
            raise UsageError(f"--device {self.device} is neither cpu nor cuda")
        if self.hosts or self.rate:
            self._check_hosts()
        if launch.torchrun_rank() is not None:
            raise UsageError("bench starts its own processes, K for each contender: run it without torchrun")

    def _check_accuracy(self) -> None:
        assert self.to_accuracy is not None
        if not 0 < self.to_accuracy <= 1:
            raise UsageError(f"--to-accuracy {self.to_accuracy:g}: give a share of the test samples, such as 0.9")
        if self.epochs < 1 or not self.learning_rate > 0:
            raise UsageError(f"--epochs {self.epochs} --lr {self.learning_rate:g}: both are above 0")
        if self.hosts or self.compile or self.device != "cpu" or self.channels_last:
            raise UsageError("--to-accuracy is for eager training on the cores of this machine; leave --hosts, "
                             "--compile, --device and --channels-last out")  # fmt: skip
        data.check(self.data)

    def _check_hosts(self) -> None:
        if self.rate and not self.hosts:
            raise UsageError(f"--rate {','.join(self.rate)} is of links between hosts; give --hosts 2 with it")
        if self.hosts < 2:
            raise UsageError(f"--hosts {self.hosts}: links are between 2 hosts or more")
        if self.hosts > self.K:
            raise UsageError(f"--hosts {self.hosts}: every host has a rank or more, and -K {self.K} are fewer")
        if self.device != "cpu":
            raise UsageError(f"--hosts are namespaces of this machine, over gloo; --device {self.device} is not")
        for rate in self.rate:
            bits_per_s(rate)
        refuse_without_rights(self.hosts)


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
