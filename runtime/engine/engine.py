"""The machinery under the trainer: who is in the team, which schedule runs, and playing it step by step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn

from lpcompile.core.compiled import CompiledProgram
from lpcompile.core.memory_format import laid_out_as, lies_channels_last
from lpcompile.core.method import hosts_of
from lpcompile.core.micro_batches import micro_of
from lpcompile.core.pipeline_order import PIPELINES, micro_batches
from lpcompile.core.schedule import Schedule
from lpcompile.core.stage_io import refresh, use_mode
from lpcompile.core.staleness import staleness
from lpcompile.core.verify import verify
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import state
from lpcompile.runtime.comm import handshake
from lpcompile.runtime.comm.buffer import Replay
from lpcompile.runtime.comm.buffer_wire import open_replay
from lpcompile.runtime.comm.transport import Distributed, Local
from lpcompile.runtime.engine import memory
from lpcompile.runtime.engine.batch import MicroBatch
from lpcompile.runtime.engine.executor import Op, prepare, run, take_turns
from lpcompile.runtime.engine.settings import Settings, settings
from lpcompile.runtime.engine.team import Factory, add_auxnets, add_kappanet, aux_nets, make_worker, stage_net
from lpcompile.runtime.engine.torch_compile import compile_now, compiled
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.methods import Method, ScheduleOptions, get_method
from lpcompile.runtime.methods.pipelines import about_batch_norm
from lpcompile.runtime.penalty.heads import Head, add_head, head_nets

log = logging.getLogger("lpcompile")
WARMUP = 200  # exact steps at most, where AuxNets do not start consistently and nobody says how many
Prepared = tuple[Schedule, dict[int, tuple[Op, ...]]]


class Engine:
    """A program set up for training: workers, optimizers, transport, and the verified schedule of the method.

    `target` is the method that was asked for, `method` the one that runs now (a warm-up, perhaps).
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
        self._optimizer, self._aux_optimizer, self._scheduler = optimizer, aux_optimizer or optimizer, scheduler
        self._given = (auxnets, kappanets, heads)
        self.target = get_method(method or self.plan.method)  # what is asked for; `method` is what runs now
        self._micro(self.target, self.settings)  # refuse what cannot be cut before ranks meet
        self.device = handshake.own_device(_device(program.module), device)
        self.replicas = replicas
        self.distributed = self.plan.K * replicas > 1 and handshake.in_torchrun()
        self.mesh = handshake.join(self.plan.K, replicas, self.device) if self.distributed else None
        self.rank = self.mesh.stage if self.mesh else 0  # the stage, also where there are replicas
        self._check_replicas()
        self.channels_last = lies_channels_last(program.module)  # boundaries and inputs lie as the weights do
        self.transport: Distributed | Local = Local()
        if self.mesh is not None:
            self.transport = Distributed(self.device, self.mesh, self.channels_last)
        if isinstance(self.transport, Distributed):
            self.transport.prepare([owners for _, owners in self.plan.tied])
        if not self.distributed:
            program.module.to(self.device)
        for stage in program.stages:
            refresh(stage)
            if not stage.training:
                use_mode(stage, True)
        if not program.module.training:  # else the user's own choice of layers that stay in evaluation holds
            program.train()
        self.steps = 0  # calls of `step`
        self.slot = self.low = 0  # the next micro-batch's number, and the first one since the last flush
        self.seen = torch.zeros(0, dtype=torch.bool)  # samples with a stored λ
        self.schedulers: dict[str, Any] = {}
        self.auxnets: dict[int, Net] = {}
        self.heads: dict[int, Head] = {}  # by rank
        self.replay: Replay | None = None
        self.violation_at_start: float | None = None
        self.said: set[str] = set()
        self.code: set[tuple[str, ...]] = set()  # methods and sizes of micro-batches that there is compiled code for
        self.workers: list[Worker] = []
        for rank in [self.rank] if self.distributed else range(self.plan.K):
            w = make_worker(program, rank, loss_fn, optimizer, self.settings, self.transport, self.device)
            w.mesh = self.mesh if replicas > 1 else None
            self.workers.append(w)
        self._begin(self.target)
        if isinstance(self.transport, Distributed):
            handshake.compare(self.facts(), self.transport.control)
            state.share_start(self)
            state.release_others(self)
        if trace:
            memory.reset_peak()
            for w in self.workers:
                w.trace = []

    def _check_replicas(self) -> None:
        if self.replicas > 1 and self.mesh is None:
            raise UsageError(
                f"replicas={self.replicas} are processes of their own; start {self.plan.K * self.replicas} of them "
                f"(torchrun --nproc-per-node {self.plan.K * self.replicas}), or use program.fit"
            )
        stored = self.target.indices or (self.target.name == "lagrangian" and self.settings.kappa == "stored")
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
    def lr(self) -> float:
        return self.workers[0].learning_rate(None)

    def _begin(self, target: Method) -> None:
        """Have what the method needs, and start it, with a warm-up where that is asked for."""
        s = self.settings
        if target.aux == "auxnet" and self.plan.K > 1 and not self.auxnets:
            self._add_auxnets()
        if target.heads and self.plan.K > 1 and not self.heads:
            self.heads = head_nets(self.program, self._given[2], self.loss_fn)
            for w in self.workers:
                add_head(w, self.heads, self._aux_optimizer)
        if target.replay and s.transfer is not None:
            raise UsageError(f"transfer={s.transfer}: {target.name!r} has messages of its own, in full precision")
        if target.replay and self.plan.K > 1:
            self.replay = open_replay(self)
        for w in self.workers:
            if target.name == "lagrangian" and s.kappa == "auxnet" and not w.kappanets:
                add_kappanet(w, self._given[1], self._aux_optimizer)
            if self._scheduler is not None:
                for name, optimizer in w.updater.optimizers().items():
                    if f"{w.rank} {name}" not in self.schedulers:
                        self.schedulers[f"{w.rank} {name}"] = self._scheduler(optimizer)
        warm = self.plan.K > 1 and self.warmup > self.steps and not target.exact
        if warm and target.heads:
            raise UsageError(
                f"warmup={self.warmup} prepares λ for decoupling, and {target.name!r} has none; leave it out"
            )
        helpers = {"store": "warmup-stored", "auxnet": "warmup", "": "bp"}
        self._use(get_method(helpers[target.aux]) if warm else target)

    def _add_auxnets(self) -> None:
        nets = aux_nets(self.program, self._given[0], self._recursive(), self._hosts())
        for net in nets.values():
            laid_out_as(self.program.module, net.module)
        self.auxnets = {k: compiled(net) if self.settings.compile else net for k, net in nets.items()}
        for w in self.workers:
            add_auxnets(w, self.auxnets, self._hosts(), self._aux_optimizer)

    @property
    def warmup(self) -> int:
        """Exact steps before decoupling: as asked for, or where AuxNets start far from what their stages give."""
        if self.settings.warmup is not None:
            return self.settings.warmup
        nets = [b.aux for b in self.plan.boundaries if b.aux is not None]
        if self.target.aux != "auxnet" or self._given[0] is not None or all(a.violation == 0 for a in nets):
            return 0
        total = self.settings.total_steps
        return min(WARMUP, total // 10) if total else WARMUP

    def _recursive(self) -> bool:
        """Whether AuxNets start from the model's input: as asked for, or as the program's own were made."""
        return self.settings.recursive or (self._given[0] is None and self.plan.aux.startswith("recursive"))

    def _hosts(self) -> dict[int, int]:
        """The plan's choice, but an AuxNet on its stage's own weights runs where they are."""
        hosts = hosts_of(self.plan, ScheduleOptions())
        for k, net in self.auxnets.items():
            ids = {id(p) for p in self.program.stages[k - 1].parameters()}
            if any(id(p) in ids for p in net.module.parameters()):
                hosts[k] = k - 1
        return hosts

    def _use(self, method: Method) -> None:
        """Make, verify and prepare the method's schedule. Nothing of another one may be under way."""
        self.method = method
        self.low = self.slot
        self.micro = self._micro(method, self.settings)
        self._say(about_batch_norm(method.name, self.program.module, self.micro, self.plan.batch))
        self.schedule, _ = self._prepared = self._prepare(method)
        self._exact = self._prepare(get_method("warmup-stored")) if method.name == "penalty-stored" else None
        self._say_staleness()
        for w in self.workers:
            w.settings = self.settings
            w.updater.clip = self._clip(method)
            for beta in w.betas.values():
                beta.use(self.settings.rule(method.beta, self.plan.K), self.settings.total_steps)

    def _say(self, text: str) -> None:
        """Tell the user something, once, from one process."""
        if text and self.main and text not in self.said:
            self.said.add(text)
            log.warning(text)

    def _micro(self, method: Method, asked: Settings) -> int:
        given, plan = asked.micro, self.plan
        if method.name in PIPELINES:
            return micro_batches(method.name, plan.K, plan.batch, given, plan.batch_free)
        return given or micro_of(plan, method.name, asked.stash) or 1

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
        return self.settings.clip_norm(method.exact or method.delayed or self.plan.K == 1)

    def _prepare(self, method: Method) -> Prepared:
        s = self.settings
        clipped = self._clip(method) > 0
        options = ScheduleOptions(
            micro=self.micro,
            lockstep=s.lockstep,
            stash=s.stash,
            recursive=self._recursive(),
            kappa=s.kappa,
            hosts=tuple(self._hosts().values()),
            tied=bool(self.plan.tied),
            norm=(clipped and (s.clip_scope == "global" or bool(self.plan.tied))) or s.autocast == torch.float16,
            replicas=self.replicas,
        )
        schedule = method.schedule(self.plan, options)
        verify(schedule)
        return schedule, {w.rank: prepare(schedule, w.rank) for w in self.workers}

    def facts(self) -> dict[str, Any]:
        """What all ranks must agree on."""
        from lpcompile import __version__

        return {
            "lpcompile version": __version__,
            "torch version": torch.__version__,
            "shapes and dtypes": [str(s) for b in self.plan.boundaries for s in b.specs],
            "plan": self.plan.hash,
            "method": self.target.name,
            "memory format": "channels last" if self.channels_last else "contiguous",
            "options": {k: str(v) for k, v in asdict_shallow(self.settings).items()},
        }

    def _compile(self, parts: Sequence[MicroBatch]) -> None:
        """Have compiled code for these micro-batches, where that is asked for."""
        needed = (self.method.name, *sorted({str(part.size) for part in parts}))
        if self.settings.compile and needed not in self.code:
            self.code.add(needed)
            compile_now(self, parts)

    def _play(self, prepared: Prepared, method: Method, high: int, apply: bool) -> None:
        """One step of the schedule, for the micro-batches below `high`."""
        schedule, programs = prepared
        oldest = self.slot - schedule.lag - self.micro
        runs = []
        for w in self.workers:
            w.method, w.step, w.apply, w.norms = method, self.steps, apply, None
            w.look = self.steps % self.settings.check_every == 0
            w.weigh = w.trace is not None and 1 <= self.steps <= 2 + schedule.lag // self.micro
            for old in [n for n in w.batches if n < oldest]:
                del w.batches[old]
            runs.append(run(w, self.transport, programs[w.rank], schedule.depth[w.rank], self.slot, self.low, high))
        try:
            with torch.enable_grad():
                take_turns(self.workers, runs)
        except BaseException:
            if self.replay is not None:
                self.replay.fail()
            raise
        self.slot += self.micro

    def flush(self) -> None:
        """Finish what is under way on skewed ranks: after this nothing is in flight and weights are at rest."""
        end = self.slot
        while self.low < end and self.slot - end < self.schedule.lag:
            self._play(self._prepared, self.method, end, apply=True)
        self.low = self.slot
        for w in self.workers:
            w.values.clear()
            w.batches.clear()
            w.metrics.clear()
            w.waited, w.sent = 0.0, 0
        if isinstance(self.transport, Distributed):
            self.transport.drain()
        if self.replay is not None:
            self.replay.drain()
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
        self._begin(self.target)

    def resume_method(self, target: str, method: str) -> None:
        """Be where a saved run was: with what it aimed at, and what it was doing (a warm-up, perhaps)."""
        self.target = get_method(target)
        self._begin(self.target)
        if self.method.name != method:
            self._use(get_method(method))

    def gather(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """What all ranks know together; every rank must call it."""
        if not isinstance(self.transport, Distributed):
            return metrics
        return handshake.merge(metrics, self.transport.control)


def asdict_shallow(given: Settings) -> dict[str, Any]:
    return {f.name: getattr(given, f.name) for f in fields(given)}


def _device(module: nn.Module) -> torch.device:
    found = next((t.device for t in (*module.parameters(), *module.buffers())), None)
    return found if found is not None else torch.device("cpu")
