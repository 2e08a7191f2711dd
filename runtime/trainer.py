"""The trainer: `step`, `fit`, `evaluate`, in one process or as one rank of several, by the same script.

>>> trainer = program.trainer(loss_fn, optimizer=lambda ps: torch.optim.SGD(ps, 0.1), method="multiplier")
>>> for x, y in loader:
...     metrics = trainer.step(x, y)
>>> trainer.evaluate(test_loader)
>>> model.load_state_dict(trainer.state_dict())
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lpcompile.runtime import evaluate as evaluation
from lpcompile.runtime import handshake, state, watch
from lpcompile.runtime.batch import micro_batches, to_device
from lpcompile.runtime.comm import Distributed, Local
from lpcompile.runtime.executor import Op, prepare, run, take_turns
from lpcompile.runtime.methods import Method, ScheduleOptions, get_method
from lpcompile.runtime.methods.method import hosts_of
from lpcompile.runtime.settings import Settings, settings
from lpcompile.runtime.team import Factory, add_auxnets, add_kappanet, aux_nets, make_worker
from lpcompile.runtime.worker import Net, Worker
from lpcompile.schedule import Schedule
from lpcompile.verify import verify

if TYPE_CHECKING:
    from lpcompile.program import Program

log = logging.getLogger("lpcompile")
SAMPLES, MICRO = 8, 4  # by default at most so many micro-batches, of at least so many samples
AGREE_EVERY = 10  # steps between looks of all ranks at the violation during a warm-up
Prepared = tuple[Schedule, dict[int, tuple[Op, ...]]]


class Trainer:
    """Trains a compiled program. See `lpcompile.runtime.settings.Settings` for the options.

    optimizer, aux_optimizer: factories from a list of parameters; AuxNets use the first where the second is not given.
    scheduler: factory from an optimizer to an LR scheduler, stepped once an optimizer step.
    method: a name, the plan's by default. auxnets: one module a boundary, the program's by default.
    """

    def __init__(
        self,
        program: Program,
        loss_fn: Callable[[Any, Any], Tensor],
        *,
        optimizer: Factory,
        aux_optimizer: Factory | None = None,
        scheduler: Callable[[Any], Any] | None = None,
        method: str | None = None,
        auxnets: Sequence[nn.Module] | None = None,
        kappanets: Sequence[nn.Module] | None = None,
        device: torch.device | str | None = None,
        trace: bool = False,
        **options: Any,
    ) -> None:
        self.program, self.loss_fn, self.settings, self.plan = program, loss_fn, settings(options), program.plan
        self._optimizer, self._aux_optimizer, self._scheduler = optimizer, aux_optimizer or optimizer, scheduler
        self._given = (auxnets, kappanets)
        self.target = get_method(method or self.plan.method)  # what is asked for; `method` is what runs now
        self.device = handshake.own_device(_device(program.module), device)
        self.distributed = self.plan.K > 1 and handshake.in_torchrun()
        self.rank = handshake.join(self.plan.K, self.device) if self.distributed else 0
        self.transport: Distributed | Local = Distributed(self.device) if self.distributed else Local()
        if isinstance(self.transport, Distributed):
            self.transport.prepare([owners for _, owners in self.plan.tied])
        program.train()
        self.steps = 0  # calls of `step`
        self.slot = self.low = 0  # the next micro-batch's number, and the first one since the last flush
        self.seen = torch.zeros(0, dtype=torch.bool)  # samples with a stored λ
        self.schedulers: dict[str, Any] = {}
        self.auxnets: dict[int, Net] = {}
        self.violation_at_start: float | None = None
        self.workers: list[Worker] = []
        for rank in [self.rank] if self.distributed else range(self.plan.K):
            w = make_worker(program, rank, loss_fn, optimizer, self.settings, self.transport, self.device)
            self.workers.append(w)
        self._begin(self.target)
        if isinstance(self.transport, Distributed):
            handshake.compare(self.facts(), self.transport.control)
            state.share_start(self)
            state.release_others(self)
        for w in self.workers if trace else ():
            w.trace = []

    def _begin(self, target: Method) -> None:
        """Have what the method needs, and start it, with a warm-up where that is asked for."""
        s = self.settings
        if target.aux == "auxnet" and self.plan.K > 1 and not self.auxnets:
            self.auxnets = aux_nets(self.program, self._given[0], s.recursive)
            for w in self.workers:
                add_auxnets(w, self.auxnets, self._hosts(), self._aux_optimizer)
        for w in self.workers:
            if target.name == "lagrangian" and s.kappa == "auxnet" and not w.kappanets:
                add_kappanet(w, self._given[1], self._aux_optimizer)
            if self._scheduler is not None:
                for name, optimizer in w.updater.optimizers().items():
                    if f"{w.rank} {name}" not in self.schedulers:
                        self.schedulers[f"{w.rank} {name}"] = self._scheduler(optimizer)
        warm = self.plan.K > 1 and s.warmup > self.steps and not target.exact
        self._use(get_method("warmup-stored" if target.aux == "store" else "warmup") if warm else target)

    def _hosts(self) -> dict[int, int]:
        """The plan's choice, but an AuxNet on its stage's own weights runs where they are."""
        hosts = hosts_of(self.plan, ScheduleOptions())
        for k, net in self.auxnets.items():
            ids = {id(p) for p in self.program.stages[k - 1].parameters()}
            if any(id(p) in ids for p in net.module.parameters()):
                hosts[k] = k - 1
        return hosts

    def _use(self, method: Method) -> None:
        """Make, verify and prepare the method's schedule."""
        self.method = method
        self.micro = self._micro(method)
        self.schedule, _ = self._prepared = self._prepare(method)
        self._exact = self._prepare(get_method("warmup-stored")) if method.name == "penalty-stored" else None
        for w in self.workers:
            w.settings = self.settings
            w.updater.clip = self._clip(method)
            for k, old in w.betas.items():
                w.betas[k] = replace(old, rule=self.settings.rule, total=self.settings.total_steps)

    def _micro(self, method: Method) -> int:
        if self.settings.micro is not None:
            return self.settings.micro
        if method.name != "multiplier" or self.plan.K == 1 or not self.plan.batch_free:
            return 1
        return max(1, min(MICRO, (self.plan.batch or 1) // SAMPLES))

    def _clip(self, method: Method) -> float:
        return self.settings.clip_norm(method.exact or self.plan.K == 1)

    def _prepare(self, method: Method) -> Prepared:
        s = self.settings
        clipped = self._clip(method) > 0
        options = ScheduleOptions(
            micro=self.micro,
            lockstep=s.lockstep,
            recursive=s.recursive,
            kappa=s.kappa,
            hosts=tuple(self._hosts().values()),
            tied=bool(self.plan.tied),
            norm=(clipped and (s.clip_scope == "global" or bool(self.plan.tied))) or s.autocast == torch.float16,
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
            "options": {k: str(v) for k, v in asdict_shallow(self.settings).items()},
        }

    # -- training -----------------------------------------------------------------------------------------------------

    def step(self, x: Any, y: Any = None, index: Tensor | None = None) -> dict[str, Any]:
        """Train on one batch; gives what this process knows of it: loss, violations, β, wait.

        x: what the model takes (a tensor, a tuple of arguments, or a dict). y: whatever the loss takes as target.
        index: the samples' numbers in the data set, for methods that keep something for each of them.
        """
        begin = time.perf_counter()
        inputs = to_device(self.program.flat_inputs(x), self.device)
        specs = [spec for _, spec in self.program.captured._lp.signature.inputs]
        parts = micro_batches(inputs, specs, to_device(y, self.device), index, self.micro, self.steps)
        prepared, method = self._for(index)
        for w in self.workers:
            w.batches |= {self.slot + i: part for i, part in enumerate(parts)}
        self._play(prepared, method, self.slot + len(parts), apply=(self.steps + 1) % self.settings.accumulate == 0)
        if (self.steps + 1) % self.settings.accumulate == 0:
            for scheduler in self.schedulers.values():
                scheduler.step()
        metrics = self._metrics(begin)
        self.steps += 1
        self._decouple(metrics)
        return metrics

    def _for(self, index: Tensor | None) -> tuple[Prepared, Method]:
        """A sample's first step is exact where λ is stored: that is where its λ comes from."""
        if index is None or self.target.aux != "store":
            return self._prepared, self.method
        if len(self.seen) <= int(index.max()):
            grown = torch.zeros(int(index.max()) + 1, dtype=torch.bool)
            grown[: len(self.seen)] = self.seen
            self.seen = grown
        new = not bool(self.seen[index].all())
        self.seen[index] = True
        if new and self._exact is not None:
            return self._exact, get_method("warmup-stored")
        return self._prepared, self.method

    def _play(self, prepared: Prepared, method: Method, high: int, apply: bool) -> None:
        """One step of the schedule, for the micro-batches below `high`."""
        schedule, programs = prepared
        oldest = self.slot - schedule.lag - self.micro
        runs = []
        for w in self.workers:
            w.method, w.step, w.apply, w.norms = method, self.steps, apply, None
            w.look = self.steps % self.settings.check_every == 0
            for old in [n for n in w.batches if n < oldest]:
                del w.batches[old]
            runs.append(run(w, self.transport, programs[w.rank], schedule.depth[w.rank], self.slot, self.low, high))
        with torch.enable_grad():
            take_turns(self.workers, runs)
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
        if isinstance(self.transport, Distributed):
            self.transport.drain()

    def _metrics(self, begin: float) -> dict[str, Any]:
        found: dict[str, Any] = {"step": self.steps, "method": self.method.name}
        for w in self.workers:
            for name, value in w.take_metrics().items():
                boundary = int(name.split()[1]) if " " in name else None
                watch.finite(name.split()[0], value, w.rank, boundary, self.steps)
                found[name] = value
            for k in w.betas if not self.method.exact else ():
                found[f"beta {k}"] = w.betas[k].at(self.steps)
        found["step ms"] = 1e3 * (time.perf_counter() - begin)
        if self.distributed:
            found["wait ms"] = 1e3 * self.workers[0].waited
            self.workers[0].waited = 0.0
        return found

    def _decouple(self, metrics: dict[str, Any]) -> None:
        """End the warm-up when it is long enough or λ is near enough to X, on all ranks at once."""
        if self.method is self.target or not self.method.name.startswith("warmup"):
            return
        over = self.steps >= self.settings.warmup
        if over or (self.settings.warmup_violation and self.steps % AGREE_EVERY == 0):
            worst = max((v for name, v in self.gather(metrics).items() if name.startswith("violation")), default=0.0)
            if over or worst < self.settings.warmup_violation:
                self.violation_at_start = worst
                log.info("step %d: decoupled after a warm-up, largest violation %.3g", self.steps, worst)
                self._use(self.target)

    def gather(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """What all ranks know together; every rank must call it."""
        if not isinstance(self.transport, Distributed):
            return metrics
        return handshake.merge(metrics, self.transport.control)

    def switch(self, method: str, **options: Any) -> None:
        """Go on with another method (and other options); parameters, optimizers, AuxNets and stores stay."""
        self.flush()
        self.target = get_method(method)
        self.settings = settings({**asdict_shallow(self.settings), **options})
        self._begin(self.target)

    def resume_method(self, target: str, method: str) -> None:
        """Be where a saved run was: with what it aimed at, and what it was doing (a warm-up, perhaps)."""
        self.target = get_method(target)
        self._begin(self.target)
        if self.method.name != method:
            self._use(get_method(method))

    def fit(
        self, loader: Iterable[Any], epochs: int = 1, *, on_step: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Train for some epochs. The loader gives (x, y), or (x, y, index) for methods that need indices."""
        if self.settings.total_steps is None and isinstance(loader, Sized):
            self.settings = replace(self.settings, total_steps=self.steps + epochs * len(loader))
            for w in self.workers:
                w.settings = self.settings
                for k, old in w.betas.items():
                    w.betas[k] = replace(old, total=self.settings.total_steps)
        metrics: dict[str, Any] = {}
        for epoch in range(epochs):
            if hasattr(getattr(loader, "sampler", None), "set_epoch"):
                loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            for batch in loader:
                metrics = self.step(*batch)
                if on_step is not None:
                    on_step(metrics)
        self.flush()
        return self.gather(metrics)

    # -- looking at the result ----------------------------------------------------------------------------------------

    def evaluate(self, loader: Iterable[Any], **options: Any) -> dict[str, float]:
        """Loss and accuracy of the serial model; see `lpcompile.runtime.evaluate.evaluate` for the options."""
        self.flush()
        return evaluation.evaluate(self, loader, **options)

    def state_dict(self) -> dict[str, Tensor]:
        """The model's parameters and buffers under its own keys, on every rank (all ranks must call it)."""
        self.flush()
        return state.model_state(self)

    def load_state_dict(self, given: dict[str, Tensor]) -> None:
        """Take over a state of the original model."""
        self.flush()
        state.load_model_state(self, given)

    def state(self) -> dict[str, Any]:
        """All that this process needs to go on from here, as plain data; nothing is in flight afterwards."""
        self.flush()
        return state.own_state(self)

    def load_state(self, given: dict[str, Any]) -> None:
        """Go on from a `state()`."""
        self.flush()
        state.load_own_state(self, given)

    @property
    def trace(self) -> list[tuple[str, int, int, float, float]]:
        """(instruction, rank, step, begin, end) in seconds, where `trace=True` was asked for."""
        return [event for w in self.workers for event in w.trace or ()]


def asdict_shallow(given: Settings) -> dict[str, Any]:
    return {f.name: getattr(given, f.name) for f in fields(given)}


def _device(module: nn.Module) -> torch.device:
    found = next((t.device for t in (*module.parameters(), *module.buffers())), None)
    return found if found is not None else torch.device("cpu")
