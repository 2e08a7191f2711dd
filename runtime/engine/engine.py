"""The engine of one process: its ranks, the transport between them, and the verified schedule that they play.

The calls of a user are in `trainer`, the phases of a run (warm-up, decoupled, exact finish) in `phases`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lpcompile.core.compiled import CompiledProgram
from lpcompile.core.memory_format import lies_channels_last
from lpcompile.core.method import check_ranks, hosts_of
from lpcompile.core.schedule import Schedule
from lpcompile.core.staleness import staleness
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import finite, state
from lpcompile.runtime.comm import handshake
from lpcompile.runtime.comm.buffer import Buffers
from lpcompile.runtime.comm.transport import Distributed, Local
from lpcompile.runtime.engine import memory, phases
from lpcompile.runtime.engine.batches.forms import input_names, labels_at, own_loss
from lpcompile.runtime.engine.batches.shares import SAMPLES, own_reduction
from lpcompile.runtime.engine.cutting import keep_whole, usual_micro
from lpcompile.runtime.engine.executor import Op, prepare, run, take_turns
from lpcompile.runtime.engine.metrics import method_text
from lpcompile.runtime.engine.schedules import clip_norm, schedule_of
from lpcompile.runtime.engine.settings import refuse_inexact_options
from lpcompile.runtime.engine.team import device_of, facts, make_worker, ready_program
from lpcompile.runtime.engine.update import Factory, check_factories
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.health.verdict import Chance
from lpcompile.runtime.loop.average import Average
from lpcompile.runtime.methods import Method, ScheduleOptions, get_method
from lpcompile.runtime.methods.pipelines import about_batch_norm, about_compiled
from lpcompile.runtime.methods.recipe import Given, Recipe, recipe_of, refuse_inexact
from lpcompile.runtime.penalty.heads import Head
from lpcompile.runtime.penalty.published import PUBLISHED

log = logging.getLogger("lpcompile")
Prepared = tuple[Schedule, dict[int, tuple[Op, ...]]]  # the instructions of each rank of this process


class UserNets(NamedTuple):
    """Networks of the user's own; None: the program's, or for κ new ones."""

    auxnets: Sequence[nn.Module] | None
    kappanets: Sequence[nn.Module] | None
    heads: Sequence[nn.Module] | None


class Engine:
    """A program set up for training. It holds all state of training in this process; `Trainer` adds a user's calls.

    `recipe` are the phases of the run and `at` the position in them; `target` is the method of the current phase,
    `method` the one that runs now: exact steps in its place, perhaps.
    """

    asked: Recipe  # as the user wrote it; set with `recipe`, its expansion, by `phases.begin`
    recipe: Recipe

    def __init__(
        self,
        program: CompiledProgram,
        loss_fn: Callable[[Any, Any], Tensor] | None = None,
        *,
        optimizer: Factory,
        aux_optimizer: Factory | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        method: Given | None = None,
        auxnets: Sequence[nn.Module] | None = None,
        kappanets: Sequence[nn.Module] | None = None,
        heads: Sequence[nn.Module] | None = None,
        device: torch.device | str | None = None,
        trace: bool = False,
        replicas: int = 1,
        **options: Any,
    ) -> None:
        check_factories({"optimizer": optimizer, "aux_optimizer": aux_optimizer, "scheduler": scheduler})
        why = ""  # the loss of a batch does not follow from those of its parts
        if loss_fn is None and options.get("reduction") is None:
            options["reduction"], why = own_reduction(program)
        self.loss_fn = loss_fn = loss_fn or own_loss
        self.input_names = input_names(program)
        self.labels = labels_at(program) if loss_fn is own_loss else None  # their place among the model's inputs
        self.program, self.plan = program, program.plan
        self.options = {**PUBLISHED, **options} if program.plan.as_published else options
        self.asked = self.recipe = asked = recipe_of(method or self.plan.training)  # as given, and with all phases
        self.target, self.settings = get_method(asked[0].method), phases.options_of(self, asked[0])
        self.aux_optimizer, self.scheduler = aux_optimizer or optimizer, scheduler
        self.given = UserNets(auxnets, kappanets, heads)
        self.steps = 0  # calls of `step`
        self.at = phases.Position()
        self.warned: set[tuple[str, int]] = set()  # troubles and boundaries, see `runtime.health.check`
        self.chance: Chance | None = None  # of the targets of the last evaluation
        self.collapsed: dict[int, str] = {}  # boundaries whose values do not vary, by the last vote
        self.slot = self.low = 0  # the next micro-batch's number, and the first one since the last flush
        self.seen = torch.zeros(0, dtype=torch.bool)  # samples with a stored λ
        self.schedulers: dict[str, Any] = {}
        self.average: Average | None = None  # of the weights, where the loop keeps one
        self.auxnets: dict[int, Net] = {}  # by boundary
        self.heads: dict[int, Head] = {}  # by rank
        self.buffers: Buffers | None = None
        self.violation_at_start: float | None = None
        self.reduction = self.whole = ""  # see `engine.loss_parts`; why batches are not cut
        self.said: set[str] = set()
        self.met = False  # whether the ranks have compared their first batch
        self.code: set[tuple[str, ...]] = set()  # methods and micro-batch sizes that are compiled by torch.compile
        self.refuse(asked, replicas)  # before ranks meet
        self._meet(device, replicas)
        ready_program(program, None if self.distributed else self.device)
        self.workers: list[Worker] = []
        for stage in (here := self.plan.stages_of(self.rank) if self.distributed else tuple(range(self.plan.K))):
            w = make_worker(program, stage, loss_fn, optimizer, self.settings, self.transport, self.device, here)
            w.mesh = self.mesh if replicas > 1 else None
            self.workers.append(w)
            w.values = next(team[0].values for team in self.teams if w in team)
        phases.begin(self, asked)
        if why:
            keep_whole(self, why)
        if isinstance(self.transport, Distributed):
            handshake.compare(facts(self), self.transport.control)
            self.transport.headers.batches = self.workers[0].batches
            state.share_start(self)
            state.release_others(self)
        self.infinite_at_start: set[str] = set()
        self.infinite_at_start = finite.known_at_start(self)
        if trace:
            memory.reset_peak()
            for w in self.workers:
                w.trace = []

    def _meet(self, device: torch.device | str | None, replicas: int) -> None:
        """Find this process's device and rank, and open the transport to the others."""
        self.device = handshake.own_device(device_of(self.program.module), device)
        self.replicas = replicas
        world = self.plan.world
        self.distributed = world * replicas > 1 and handshake.in_torchrun()
        self.mesh = handshake.join(world, replicas, self.device) if self.distributed else None
        self.rank = self.mesh.stage if self.mesh else 0  # of those of a replica
        if replicas > 1 and self.mesh is None:
            raise UsageError(
                f"replicas={replicas} are processes of their own; start {world * replicas} of them (torchrun "
                f"--nproc-per-node {world * replicas}), or use program.fit"
            )
        self.channels_last = lies_channels_last(self.program.module)  # boundaries and inputs lie as the weights do
        self.transport: Distributed | Local = Local()
        if self.mesh is not None:
            self.transport = Distributed(self.device, self.mesh, self.channels_last, self.plan.ranks)
            self.transport.prepare(self.plan.tied)

    def refuse(self, recipe: Recipe, replicas: int) -> None:
        """Refuse phases that cannot run: a batch that cannot be cut, values by sample over replicas, late gradients of
        a program that was compiled with exact=True."""
        if self.plan.exact:
            refuse_inexact(recipe)
        for phase in recipe:
            method, own = get_method(phase.method), phases.options_of(self, phase)
            check_ranks(self.plan, method)
            if self.plan.exact and self.plan.K > 1:
                refuse_inexact_options(own)
            usual_micro(self, method, own)
            if replicas > 1 and method.keeps_samples(own.kappa):
                text = "keeps values for each sample, which come to another replica in every epoch; use replicas=1, or"
                raise UsageError(f"{method.name!r} {text} another method")

    @property
    def first_rank(self) -> int:
        """The rank of this replica's first stage."""
        return self.mesh.first if self.mesh else 0

    @property
    def teams(self) -> list[list[Worker]]:
        """The workers of each rank in this process."""
        ranks = dict.fromkeys(self.plan.rank_of(w.rank) for w in self.workers)
        return [[w for w in self.workers if self.plan.rank_of(w.rank) == rank] for rank in ranks]

    @property
    def main(self) -> bool:
        """Whether this process is the one that writes and prints for all."""
        return self.rank == 0 and self.first_rank == 0

    @property
    def control(self) -> Any:
        """The group of all ranks for objects on the CPU; None in one process."""
        return self.transport.control if isinstance(self.transport, Distributed) else None

    def recursive(self) -> bool:
        """Whether AuxNets start from the model's input: by the setting, or by the kind of the program's own."""
        return self.settings.recursive or (self.given.auxnets is None and self.plan.aux.startswith("recursive"))

    def hosts(self) -> dict[int, int]:
        """The host rank of each AuxNet: the plan's, but an AuxNet on its stage's weights runs on the stage's rank."""
        hosts = hosts_of(self.plan, ScheduleOptions())
        for k, net in self.auxnets.items():
            ids = {id(p) for p in self.program.stages[k - 1].parameters()}
            if any(id(p) in ids for p in net.module.parameters()):
                hosts[k] = k - 1
        return hosts

    def use(self, method: Method, micro: int | None = None) -> None:
        """Make, verify and prepare the method's schedule. Nothing of another method may be in flight. micro: for a
        batch that is smaller than usual."""
        self.method = method
        self.low = self.slot
        self.micro = micro or usual_micro(self, method, self.settings)
        if micro is None:
            self.warn(about_batch_norm(method, self.program.module, self.micro, self.plan.batch))
            self.warn(about_compiled(method, self.plan.world, self.settings.compile))
        self.schedule, _ = self.prepared = self._prepare(method)
        self.exact = self._prepare(get_method(method.first_sight)) if method.first_sight else None
        if micro is None and self.main and self.plan.K > 1:
            log.info("%s", method_text(self))
        for w in self.workers:
            w.settings = self.settings
            w.ahead = max(i.ahead for i in self.schedule.ranks[self.plan.rank_of(w.rank)])
            w.updater.clip = clip_norm(self.plan, method, self.settings)
            for beta in w.betas.values():
                beta.use(self.settings.rule(method.beta, self.plan.K), self.settings.total_steps)

    def warn(self, text: str) -> None:
        """Warn the user once, from one process."""
        if text and self.main and text not in self.said:
            self.said.add(text)
            log.warning(text)

    @property
    def reduction_now(self) -> str:
        """What the loss is a mean over: the setting, or what was measured."""
        return self.settings.reduction or self.reduction or SAMPLES

    @property
    def staleness(self) -> tuple[int, ...]:
        """For each rank, by how many updates its gradients are late: see `lpcompile.core.staleness`."""
        return staleness(self.schedule)

    def _prepare(self, method: Method) -> Prepared:
        schedule = schedule_of(
            self.plan,
            method,
            self.settings,
            self.micro,
            hosts=tuple(self.hosts().values()),
            recursive=self.recursive(),
            replicas=self.replicas,
        )
        return schedule, {team[0].rank: prepare(schedule, team[0].rank) for team in self.teams}

    def play(self, prepared: Prepared, method: Method, high: int, apply: bool) -> None:
        """One step of the schedule, for the micro-batches below `high`."""
        schedule, programs = prepared
        if isinstance(self.transport, Distributed):
            self.transport.headers.use(schedule)
        for w in self.workers:
            w.begin_step(method, self.steps, apply, oldest=self.slot - schedule.lag - self.micro)
            w.weigh = w.trace is not None and 1 <= self.steps <= 2 + schedule.lag // self.micro
        runs = [
            run(team, self.transport, ops, schedule.depth[rank], self.slot, self.low, high)
            for team, (rank, ops) in zip(self.teams, programs.items(), strict=True)
        ]
        try:
            with torch.enable_grad():
                take_turns(self.teams, runs)
        except BaseException:
            if self.buffers is not None:
                self.buffers.fail()
            raise
        self.slot += self.micro

    def flush(self, size: int = 0) -> None:
        """Finish the micro-batches in flight on skewed ranks: afterwards nothing is in flight, weights are at rest.

        size: of the next batch, where it is the reason; ranks that disagree on it are told so.
        """
        low, end = self.low, self.slot
        while self.low < end and self.slot - end < self.schedule.lag:
            self.play(self.prepared, self.method, end, apply=True)
        self.low = self.slot
        for w in self.workers:
            w.come_to_rest()
        if isinstance(self.transport, Distributed):
            if end > low and not self.method.replay_buffers:
                self.transport.headers.end(self.steps, size)
            self.transport.drain()
        if self.buffers is not None:
            self.buffers.drain()
        if self.mesh is not None and self.replicas > 1:
            self.mesh.share(b for w in self.workers for m in state.modules(w) for b in m.buffers())

    def switch(self, method: Given, **options: Any) -> None:
        """Go on with another method or recipe (and other options); parameters, optimizers, AuxNets and stores stay."""
        asked, before = recipe_of(method), self.options
        self.options = {**self.options, **options}
        try:
            self.refuse(asked, self.replicas)
        except UsageError:
            self.options = before
            raise
        self.flush()
        phases.begin(self, asked)

    def gather(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Metrics of all ranks together; every rank must call it."""
        if not isinstance(self.transport, Distributed):
            return metrics
        return handshake.merge(metrics, self.transport.control)
