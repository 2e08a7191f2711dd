"""What a process has while it trains: its ranks, the transport between them, and the verified schedule that they play.

The calls of a user are in `trainer`, the order of methods (warm-up, decoupled, exact finish) in `phases`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lpcompile.core import __version__
from lpcompile.core.compiled import CompiledProgram
from lpcompile.core.memory_format import lies_channels_last
from lpcompile.core.method import hosts_of
from lpcompile.core.micro_batches import micro_for
from lpcompile.core.schedule import Schedule
from lpcompile.core.staleness import staleness
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import state
from lpcompile.runtime.comm import handshake
from lpcompile.runtime.comm.buffer import Buffers
from lpcompile.runtime.comm.transport import Distributed, Local
from lpcompile.runtime.engine import memory, phases
from lpcompile.runtime.engine.executor import Op, prepare, run, take_turns
from lpcompile.runtime.engine.schedules import clip_norm, schedule_of
from lpcompile.runtime.engine.settings import Settings, asdict_shallow, settings
from lpcompile.runtime.engine.team import device_of, make_worker, ready_program, stage_net
from lpcompile.runtime.engine.update import Factory
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.methods import Method, ScheduleOptions, get_method
from lpcompile.runtime.methods.pipelines import about_batch_norm
from lpcompile.runtime.penalty.heads import Head

log = logging.getLogger("lpcompile")
Prepared = tuple[Schedule, dict[int, tuple[Op, ...]]]  # the instructions of each rank of this process


class UserNets(NamedTuple):
    """Networks of the user's own; None: the program's, or for κ new ones."""

    auxnets: Sequence[nn.Module] | None
    kappanets: Sequence[nn.Module] | None
    heads: Sequence[nn.Module] | None


class Engine:
    """A program set up for training. It holds all state of training in this process; `Trainer` adds a user's calls.

    `target` is the method that was asked for, `method` the one that runs now: a warm-up, perhaps.
    """

    def __init__(
        self,
        program: CompiledProgram,
        loss_fn: Callable[[Any, Any], Tensor],
        *,
        optimizer: Factory,
        aux_optimizer: Factory | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        method: str | None = None,
        auxnets: Sequence[nn.Module] | None = None,
        kappanets: Sequence[nn.Module] | None = None,
        heads: Sequence[nn.Module] | None = None,
        device: torch.device | str | None = None,
        trace: bool = False,
        replicas: int = 1,
        **options: Any,
    ) -> None:
        self.program, self.loss_fn, self.settings, self.plan = program, loss_fn, settings(options), program.plan
        self.aux_optimizer, self.scheduler = aux_optimizer or optimizer, scheduler
        self.given = UserNets(auxnets, kappanets, heads)
        self.target = get_method(method or self.plan.method)
        self._micro(self.target, self.settings)  # refuse what cannot be cut before ranks meet
        self.steps = 0  # calls of `step`
        self.slot = self.low = 0  # the next micro-batch's number, and the first one since the last flush
        self.seen = torch.zeros(0, dtype=torch.bool)  # samples with a stored λ
        self.schedulers: dict[str, Any] = {}
        self.auxnets: dict[int, Net] = {}  # by boundary
        self.heads: dict[int, Head] = {}  # by rank
        self.buffers: Buffers | None = None
        self.violation_at_start: float | None = None
        self.said: set[str] = set()
        self.code: set[tuple[str, ...]] = set()  # methods and micro-batch sizes that are compiled by torch.compile
        self._meet(device, replicas)
        ready_program(program, None if self.distributed else self.device)
        self.workers: list[Worker] = []
        for rank in [self.rank] if self.distributed else range(self.plan.K):
            w = make_worker(program, rank, loss_fn, optimizer, self.settings, self.transport, self.device)
            w.mesh = self.mesh if replicas > 1 else None
            self.workers.append(w)
        phases.begin(self, self.target)
        if isinstance(self.transport, Distributed):
            handshake.compare(self.facts(), self.transport.control)
            state.share_start(self)
            state.release_others(self)
        if trace:
            memory.reset_peak()
            for w in self.workers:
                w.trace = []

    def _meet(self, device: torch.device | str | None, replicas: int) -> None:
        """Find this process's device and rank, and open the transport to the others."""
        self.device = handshake.own_device(device_of(self.program.module), device)
        self.replicas = replicas
        self.distributed = self.plan.K * replicas > 1 and handshake.in_torchrun()
        self.mesh = handshake.join(self.plan.K, replicas, self.device) if self.distributed else None
        self.rank = self.mesh.stage if self.mesh else 0  # the stage, also where there are replicas
        self._check_replicas()
        self.channels_last = lies_channels_last(self.program.module)  # boundaries and inputs lie as the weights do
        self.transport: Distributed | Local = Local()
        if self.mesh is not None:
            self.transport = Distributed(self.device, self.mesh, self.channels_last)
            self.transport.prepare([owners for _, owners in self.plan.tied])

    def _check_replicas(self) -> None:
        if self.replicas > 1 and self.mesh is None:
            raise UsageError(
                f"replicas={self.replicas} are processes of their own; start {self.plan.K * self.replicas} of them "
                f"(torchrun --nproc-per-node {self.plan.K * self.replicas}), or use program.fit"
            )
        stored = self.target.keeps_samples(self.settings.kappa)
        if self.replicas > 1 and stored:
            raise UsageError(
                f"{self.target.name!r} keeps values for each sample, which come to another replica in every epoch; "
                f"use replicas=1, or another method"
            )

    @property
    def first_rank(self) -> int:
        """The rank of this replica's first stage."""
        return self.mesh.first if self.mesh else 0

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes and prints for all."""
        return self.rank == 0 and self.first_rank == 0

    @property
    def control(self) -> Any:
        """The group of all ranks for objects on the CPU; None in one process."""
        return self.transport.control if isinstance(self.transport, Distributed) else None

    @property
    def warmup(self) -> int:
        """Exact steps before decoupling, at most."""
        return phases.warmup_steps(self)

    def _recursive(self) -> bool:
        """Whether AuxNets start from the model's input: by the setting, or by the kind of the program's own."""
        return self.settings.recursive or (self.given.auxnets is None and self.plan.aux.startswith("recursive"))

    def _hosts(self) -> dict[int, int]:
        """The host rank of each AuxNet: the plan's, but an AuxNet on its stage's weights runs on the stage's rank."""
        hosts = hosts_of(self.plan, ScheduleOptions())
        for k, net in self.auxnets.items():
            ids = {id(p) for p in self.program.stages[k - 1].parameters()}
            if any(id(p) in ids for p in net.module.parameters()):
                hosts[k] = k - 1
        return hosts

    def use(self, method: Method) -> None:
        """Make, verify and prepare the method's schedule. Nothing of another method may be in flight."""
        self.method = method
        self.low = self.slot
        self.micro = self._micro(method, self.settings)
        self._say(about_batch_norm(method, self.program.module, self.micro, self.plan.batch))
        self.schedule, _ = self.prepared = self._prepare(method)
        self._exact = self._prepare(get_method(method.first_sight)) if method.first_sight else None
        self._say_staleness()
        for w in self.workers:
            w.settings = self.settings
            w.updater.clip = self._clip(method)
            for beta in w.betas.values():
                beta.use(self.settings.rule(method.beta, self.plan.K), self.settings.total_steps)

    def _say(self, text: str) -> None:
        """Warn the user once, from one process."""
        if text and self.main and text not in self.said:
            self.said.add(text)
            log.warning(text)

    def _micro(self, method: Method, asked: Settings) -> int:
        return micro_for(self.plan, method, asked.micro, asked.stash)

    @property
    def staleness(self) -> tuple[int, ...]:
        """For each rank, by how many updates its gradients are late: see `lpcompile.core.staleness`."""
        return staleness(self.schedule)

    def _say_staleness(self) -> None:
        late = self.staleness
        if self.main and any(late):
            log.info("%s: gradients are late by %s steps on ranks 0 to %d", self.method.name,
                     ", ".join(map(str, late)), self.plan.K - 1)  # fmt: skip

    def _clip(self, method: Method) -> float:
        return clip_norm(self.plan, method, self.settings)

    def _prepare(self, method: Method) -> Prepared:
        schedule = schedule_of(
            self.plan,
            method,
            self.settings,
            self.micro,
            hosts=tuple(self._hosts().values()),
            recursive=self._recursive(),
            replicas=self.replicas,
        )
        return schedule, {w.rank: prepare(schedule, w.rank) for w in self.workers}

    def facts(self) -> dict[str, Any]:
        """What all ranks must agree on."""
        return {
            "lpcompile version": __version__,
            "torch version": torch.__version__,
            "shapes and dtypes": [str(s) for b in self.plan.boundaries for s in b.specs],
            "plan": self.plan.hash,
            "method": self.target.name,
            "memory format": "channels last" if self.channels_last else "contiguous",
            "options": {k: str(v) for k, v in asdict_shallow(self.settings).items()},
        }

    def play(self, prepared: Prepared, method: Method, high: int, apply: bool) -> None:
        """One step of the schedule, for the micro-batches below `high`."""
        schedule, programs = prepared
        runs = []
        for w in self.workers:
            w.begin_step(method, self.steps, apply, oldest=self.slot - schedule.lag - self.micro)
            w.weigh = w.trace is not None and 1 <= self.steps <= 2 + schedule.lag // self.micro
            runs.append(run(w, self.transport, programs[w.rank], schedule.depth[w.rank], self.slot, self.low, high))
        try:
            with torch.enable_grad():
                take_turns(self.workers, runs)
        except BaseException:
            if self.buffers is not None:
                self.buffers.fail()
            raise
        self.slot += self.micro

    def flush(self) -> None:
        """Finish the micro-batches in flight on skewed ranks: afterwards nothing is in flight, weights are at rest."""
        end = self.slot
        while self.low < end and self.slot - end < self.schedule.lag:
            self.play(self.prepared, self.method, end, apply=True)
        self.low = self.slot
        for w in self.workers:
            w.come_to_rest()
        if isinstance(self.transport, Distributed):
            self.transport.drain()
        if self.buffers is not None:
            self.buffers.drain()
        if self.mesh is not None and self.replicas > 1:
            self.mesh.share(b for w in self.workers for m in state.modules(w) for b in m.buffers())

    def switch(self, method: str, **options: Any) -> None:
        """Go on with another method (and other options); parameters, optimizers, AuxNets and stores stay."""
        target, asked = get_method(method), settings({**asdict_shallow(self.settings), **options})
        self._micro(target, asked)
        self.flush()
        other_stages = asked.autocast != self.settings.autocast
        self.target, self.settings = target, asked
        for w in self.workers if other_stages else ():
            w.stage = stage_net(self.program, w.rank, asked)
        phases.begin(self, self.target)

    def resume_method(self, target: str, method: str) -> None:
        """Go on as a saved run: with its target, and the method that ran (a warm-up, perhaps)."""
        self.target = get_method(target)
        phases.begin(self, self.target)
        if self.method.name != method:
            self.use(get_method(method))

    def gather(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Metrics of all ranks together; every rank must call it."""
        if not isinstance(self.transport, Distributed):
            return metrics
        return handshake.merge(metrics, self.transport.control)
