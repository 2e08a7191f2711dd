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
import warnings
from collections.abc import Callable, Iterable, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lpcompile.core.memory_format import channels_last
from lpcompile.errors import InputError
from lpcompile.runtime.checkpoint import state
from lpcompile.runtime.engine.batch import micro_batches, to_device
from lpcompile.runtime.engine.engine import Engine, Prepared
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.loop import evaluate as evaluation
from lpcompile.runtime.methods import Method, get_method
from lpcompile.runtime.penalty import collapse

log = logging.getLogger("lpcompile")
AGREE_EVERY = 10  # steps between looks of all ranks at the violation during a warm-up


class Trainer(Engine):
    """Trains a compiled program. See `lpcompile.runtime.engine.settings.Settings` for the options.

    optimizer, aux_optimizer: factories from a list of parameters; AuxNets use the first where the second is not given.
    scheduler: factory from an optimizer to an LR scheduler, stepped once an optimizer step.
    method: a name, the plan's by default. auxnets: one module a boundary, the program's by default.
    heads: for `dgl`, a module for every stage but the last, from the boundary's tensors to what the loss takes; by
        default the program's, which are derived.
    """

    def step(self, x: Any, y: Any = None, index: Tensor | None = None, *, size: int | None = None) -> dict[str, Any]:
        """Train on one batch; gives what this process knows of it: loss, violations, β, wait.

        x: what the model takes (a tensor, a tuple of arguments, or a dict). y: whatever the loss takes as target.
        index: the samples' numbers in the data set, for methods that keep something for each of them.
        A rank whose stage and AuxNets take no input of the model may pass x=None with the batch's size, and y is needed
        where there is a loss: on the last rank, and where a stage has a head (see `needs`).
        """
        begin = time.perf_counter()
        self._finish()
        inputs = to_device(self._inputs(x, size), self.device)
        if self.channels_last:
            inputs = [channels_last(t) for t in inputs]
        specs = self.program.input_specs
        parts = micro_batches(inputs, specs, to_device(y, self.device), index, self.micro, self.steps, size)
        scale = self.workers[0].updater.scale
        parts = [replace(part, scale=scale) for part in parts] if scale != 1.0 else parts
        self._compile(parts)
        prepared, method = self._for(index)
        for w in self.workers:
            w.batches |= {self.slot + i: part for i, part in enumerate(parts)}
        self._play(prepared, method, self.slot + len(parts), apply=(self.steps + 1) % self.settings.accumulate == 0)
        if (self.steps + 1) % self.settings.accumulate == 0:
            self._step_schedulers()
        metrics = self._metrics(begin)
        self.steps += 1
        self._note_start(metrics)
        self._decouple(metrics)
        return metrics

    def _step_schedulers(self) -> None:
        """All ranks' learning rates move together, also while a skewed rank has not stepped yet."""
        with warnings.catch_warnings():
            if self.slot <= self.schedule.lag + self.micro:
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            for scheduler in self.schedulers.values():
                scheduler.step()

    @property
    def needs(self) -> dict[str, bool]:
        """Whether this process needs the batch's inputs, and its targets."""
        takes = [w for w in self.workers if w.rank == 0 or not self.method.replay]  # the others are sent theirs
        targets = any(w.last or w.head is not None for w in takes)
        return {"inputs": any(net.io.inputs for net in _nets(takes)), "targets": targets}

    @property
    def takes_inputs(self) -> bool:
        """Whether anything in this process, in training or evaluation, takes an input of the model."""
        return any(net.io.inputs for net in _nets(self.workers))

    def _inputs(self, x: Any, size: int | None) -> list[Tensor]:
        if x is not None:
            return self.program.flat_inputs(x)
        if self.needs["inputs"] or size is None:
            missing = "its inputs" if self.needs["inputs"] else "its size"
            raise InputError(
                f"rank {self.rank} needs of every batch {missing}: pass x, or size=... where x is not needed"
            )
        return []

    def _for(self, index: Tensor | None) -> tuple[Prepared, Method]:
        """A sample's first step is exact where λ is stored: that is where its λ comes from."""
        if index is None and self.plan.K > 1 and self._keeps_samples():
            raise InputError(
                f"{self.target.name!r} keeps values for each sample: pass their indices, trainer.step(x, y, index=i)"
            )
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

    def _keeps_samples(self) -> bool:
        return self.target.indices or (self.target.name == "lagrangian" and self.settings.kappa == "stored")

    def _metrics(self, begin: float) -> dict[str, Any]:
        found: dict[str, Any] = {"step": self.steps, "method": self.method.name}
        for w in self.workers:
            for name, value in w.take_metrics().items():
                boundary = int(name.split()[1]) if name.startswith("violation") else None
                collapse.finite(name.split()[0], value, w.rank, boundary, self.steps)
                found[name] = value
            above = w.rank + 1  # the rank below a boundary weighs it in any case
            if above in w.betas and self.method.aux and not self.method.exact:
                found[f"beta {above}"] = float(w.betas[above].at(self.steps))
        found["step ms"] = 1e3 * (time.perf_counter() - begin)
        if self.distributed:
            found["wait ms"] = found[f"wait ms {self.rank}"] = 1e3 * self.workers[0].waited
        found["bytes"] = sum(w.sent for w in self.workers)
        for w in self.workers:
            w.waited, w.sent = 0.0, 0
        return found

    def _note_start(self, metrics: dict[str, Any]) -> None:
        """Where there was no warm-up: how far λ was from X when training began, as far as this rank sees it."""
        seen = [value for name, value in metrics.items() if name.startswith("violation")]
        if self.violation_at_start is None and seen and not self.method.exact:
            self.violation_at_start = max(seen)
            log.info("step %d: decoupled from the start, largest violation %.3g", self.steps, self.violation_at_start)

    def _decouple(self, metrics: dict[str, Any]) -> None:
        """End the warm-up when it is long enough or λ is near enough to X, on all ranks at once."""
        if self.method is self.target:
            return
        over = self.steps >= self.warmup
        if over or (self.target.aux and self.settings.warmup_violation and self.steps % AGREE_EVERY == 0):
            seen = [v for name, v in self.gather(metrics).items() if name.startswith("violation")]
            worst = max(seen, default=0.0)
            if over or (seen and worst < self.settings.warmup_violation):
                if self.target.aux:
                    self.violation_at_start = worst
                log.info("step %d: decoupled after a warm-up, largest violation %.3g", self.steps, worst)
                self._use(self.target)

    def _finish(self) -> None:
        """Go on exactly when only the last steps are left, on all ranks alike."""
        total, last = self.settings.total_steps, self.settings.finish
        if last and total and self.steps >= total - last and not self.target.exact and self.plan.K > 1:
            log.info("step %d: the last %d steps are exact", self.steps, total - self.steps)
            self.switch("bp", micro=None)

    def plan_steps(self, total: int) -> None:
        """Say how long training lasts, for a β that rises with it, where the settings do not."""
        if self.settings.total_steps is None:
            self.settings = replace(self.settings, total_steps=total)
            for w in self.workers:
                w.settings = self.settings
                for beta in w.betas.values():
                    beta.total = total

    def fit(
        self, loader: Iterable[Any], epochs: int = 1, *, on_step: Callable[[dict[str, Any]], None] | None = None
    ) -> dict[str, Any]:
        """Train for some epochs. The loader gives (x, y), or (x, y, index) for methods that need indices."""
        if isinstance(loader, Sized):
            self.plan_steps(self.steps + epochs * len(loader))
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

    def evaluate(self, loader: Iterable[Any], **options: Any) -> dict[str, float]:
        """Loss and accuracy of the serial model; see `lpcompile.runtime.loop.evaluate.evaluate` for the options."""
        self.flush()
        return evaluation.evaluate(self, loader, **options)

    def recalibrate(self, loader: Iterable[Any], batches: int = evaluation.RECALIBRATION_BATCHES) -> None:
        """Take BatchNorm's running statistics anew on X, from training data: a decoupled method gathers them on λ."""
        self.flush()
        with evaluation.recalibrated(self, loader, batches, keep=True):
            pass

    def state_dict(self) -> dict[str, Tensor]:
        """The model's parameters and buffers under its own keys, on every rank (all ranks must call it)."""
        self.flush()
        return state.model_state(self)

    def load_state_dict(self, given: dict[str, Tensor]) -> None:
        """Take over a state of the original model."""
        self.flush()
        state.load_model_state(self, given)

    def state(self) -> dict[str, Any]:
        """All that this process needs to go on from here, as plain data; nothing is in flight afterwards.

        The tensors are the live ones, as in torch's state_dict: save or copy them before training goes on.
        """
        self.flush()
        return state.own_state(self)

    def load_state(self, given: dict[str, Any]) -> None:
        """Go on from a `state()`."""
        self.flush()
        state.load_own_state(self, given)

    def save(self, folder: str | Path, *, keep: int = 2) -> Path:
        """Write a checkpoint into `folder`, whole or not at all; the newest `keep` stay. All ranks must call it."""
        from lpcompile.runtime.checkpoint import checkpoint

        return checkpoint.save(self, Path(folder), keep=keep)

    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint, or from the newest one in a folder of them; also one of another K."""
        from lpcompile.runtime.checkpoint import checkpoint

        checkpoint.load(self, checkpoint.find(Path(folder)))

    @property
    def trace(self) -> list[tuple[str, int, int, float, float]]:
        """(instruction, rank, step, begin, end) in seconds, where `trace=True` was asked for."""
        return [event for w in self.workers for event in w.trace or ()]


def _nets(workers: Iterable[Worker]) -> list[Net]:
    return [net for w in workers for net in (w.stage, *w.auxnets.values(), *([w.head.net] if w.head else []))]
