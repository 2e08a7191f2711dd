"""The trainer: `step`, `fit`, `evaluate`, in one process or as one rank of several, by the same script.

>>> trainer = program.trainer(loss_fn, optimizer=lambda ps: torch.optim.SGD(ps, 0.1), method="multiplier")
>>> for x, y in loader:
...     metrics = trainer.step(x, y)
>>> trainer.evaluate(test_loader)
>>> model.load_state_dict(trainer.state_dict())
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lpcompile.core.memory_format import channels_last
from lpcompile.errors import InputError
from lpcompile.runtime.checkpoint import state
from lpcompile.runtime.engine import phases
from lpcompile.runtime.engine.batch import MicroBatch, micro_batches, to_device
from lpcompile.runtime.engine.engine import Engine
from lpcompile.runtime.engine.torch_compile import ensure_compiled
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.loop import evaluate as evaluation
from lpcompile.runtime.penalty import collapse


class Trainer(Engine):
    """Trains a compiled program. See `lpcompile.runtime.engine.settings.Settings` for the options.

    optimizer, aux_optimizer: factories from a list of parameters; AuxNets use the first where the second is not given.
    scheduler: factory from an optimizer to an LR scheduler, stepped once an optimizer step.
    method: a name, the plan's by default. auxnets: one module a boundary, the program's by default.
    heads: for `dgl`, a module for every stage but the last, from the boundary's tensors to what the loss takes; by
        default the program's, which are derived.
    """

    def step(self, x: Any, y: Any = None, index: Tensor | None = None, *, size: int | None = None) -> dict[str, Any]:
        """Train on one batch; returns this process's metrics: loss, violations, β, waiting time.

        x: what the model takes (a tensor, a tuple of arguments, or a dict). y: whatever the loss takes as target.
        index: the samples' indices in the data set, for methods that store values by sample.
        A rank whose stage and AuxNets take no input of the model may pass x=None with the batch's size, and y is needed
        where there is a loss: on the last rank, and where a stage has a head (see `needs`).
        """
        begin = time.perf_counter()
        phases.begin_finish(self)
        parts = self._micro_batches(x, y, index, size)
        ensure_compiled(self, parts)
        prepared, method = phases.schedule_of(self, index)
        for w in self.workers:
            w.batches |= {self.slot + i: part for i, part in enumerate(parts)}
        apply = (self.steps + 1) % self.settings.accumulate == 0
        self.play(prepared, method, self.slot + len(parts), apply)
        if apply:
            self._step_schedulers()
        metrics = self._metrics(begin)
        self.steps += 1
        phases.note_start(self, metrics)
        phases.end_warm_up(self, metrics)
        return metrics

    def _micro_batches(self, x: Any, y: Any, index: Tensor | None, size: int | None) -> list[MicroBatch]:
        """The batch on this process's device, cut, with the loss scale of now."""
        inputs = to_device(self._inputs(x, size), self.device)
        if self.channels_last:
            inputs = [channels_last(t) for t in inputs]
        target = to_device(y, self.device)
        parts = micro_batches(inputs, self.program.input_specs, target, index, self.micro, self.steps, size)
        scale = self.workers[0].updater.scale
        return [replace(part, scale=scale) for part in parts] if scale != 1.0 else parts

    def _inputs(self, x: Any, size: int | None) -> list[Tensor]:
        if x is not None:
            return self.program.flat_inputs(x)
        if self.needs["inputs"] or size is None:
            missing = "its inputs" if self.needs["inputs"] else "its size"
            raise InputError(
                f"rank {self.rank} needs of every batch {missing}: pass x, or size=... where x is not needed"
            )
        return []

    def _step_schedulers(self) -> None:
        """Learning rates of all ranks move together, also before a skewed rank's first optimizer step."""
        with warnings.catch_warnings():
            if self.slot <= self.schedule.lag + self.micro:
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            for scheduler in self.schedulers.values():
                scheduler.step()

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

    @property
    def lr(self) -> float:
        """The learning rate of this process's first stage."""
        return self.workers[0].learning_rate(None)

    @property
    def needs(self) -> dict[str, bool]:
        """Whether this process needs the batch's inputs, and its targets."""
        takes = [w for w in self.workers if w.rank == 0 or not self.method.replay]  # others draw theirs
        targets = any(w.last or w.head is not None for w in takes)
        return {"inputs": any(net.io.inputs for net in _nets(takes)), "targets": targets}

    @property
    def takes_inputs(self) -> bool:
        """Whether anything in this process, in training or evaluation, takes an input of the model."""
        return any(net.io.inputs for net in _nets(self.workers))

    def plan_steps(self, total: int) -> None:
        """Set the length of training, for a β that rises with it, unless the settings have it."""
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
        """Loss and accuracy of the serial model: see `lpcompile.runtime.loop.evaluate.evaluate` for the options."""
        self.flush()
        return evaluation.evaluate(self, loader, **options)

    def recalibrate(self, loader: Iterable[Any], batches: int = evaluation.RECALIBRATION_BATCHES) -> None:
        """Recompute BatchNorm's running statistics on X, from training data: a decoupled method gathers them on λ."""
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
        """Everything that this process needs to resume, as plain data; nothing is in flight afterwards.

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
