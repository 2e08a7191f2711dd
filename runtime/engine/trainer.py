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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lpcompile.core.memory_format import channels_last
from lpcompile.core.stage_io import batch_of
from lpcompile.errors import InputError, options_checked
from lpcompile.runtime.checkpoint import state
from lpcompile.runtime.comm.fingerprint import Fingerprint, of_batch
from lpcompile.runtime.comm.transport import Distributed
from lpcompile.runtime.engine import loss_parts, phases
from lpcompile.runtime.engine.batches.batch import MicroBatch, micro_batches, to_device
from lpcompile.runtime.engine.batches.forms import own_loss, parts_of
from lpcompile.runtime.engine.batches.shares import weighted
from lpcompile.runtime.engine.cutting import fit_batch
from lpcompile.runtime.engine.engine import Engine
from lpcompile.runtime.engine.metrics import of_step
from lpcompile.runtime.engine.torch_compile import ensure_compiled
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.health import check
from lpcompile.runtime.health.verdict import verdict
from lpcompile.runtime.loop import evaluate as evaluation
from lpcompile.runtime.loop.data import EMPTY, compare_data, length_of, share_random
from lpcompile.runtime.loop.record import Record, Timing


class Trainer(Engine):
    """What `program.trainer` returns: the calls of a user on an `Engine`, which holds all state.

    See `lpcompile.runtime.engine.settings.Settings` for the options.

    optimizer, aux_optimizer: factories from a list of parameters; AuxNets use the first where the second is not given.
    scheduler: factory from an optimizer to an LR scheduler, stepped once an optimizer step.
    method: a name or a recipe (`lpcompile.runtime.methods.recipe`), the plan's by default.
    auxnets: one module a boundary, the program's by default.
    heads: for `dgl`, a module for every stage but the last, from the boundary's tensors to what the loss takes; by
        default the program's, which are derived.
    """

    def step(
        self,
        x: Any,
        y: Any = None,
        index: Tensor | None = None,
        *,
        size: int | None = None,
        apply: bool | None = None,
        share: float = 1.0,
    ) -> dict[str, Any]:
        """Train on one batch; returns this process's metrics: loss, violations, β, waiting time.

        x: what the model takes (a tensor, a tuple of arguments, or a dict). y: whatever the loss takes as target. A
        dict or `BatchEncoding` may hold both, and with the model's own loss (x, y) are its first two arguments.
        index: the samples' indices in the data set, for methods that store values by sample.
        apply: whether optimizers step after this batch, by default every `accumulate` batches; share: a factor of its
        loss.
        A rank whose stage and AuxNets take no input of the model may pass x=None with the batch's size, and y is needed
        where there is a loss: on the last rank, and where a stage has a head (see `needs`).
        """
        begin = time.perf_counter()
        if y is None and isinstance(x, Mapping):
            x, y, _ = parts_of(self.input_names, self.loss_fn, x)
        elif y is not None and self.loss_fn is own_loss:
            x, y = (x, y), None
        if not self.reduction:
            loss_parts.measure(self, x, y, size)
        phases.before_step(self)
        parts = self._micro_batches(x, y, index, size)
        parts = parts if share == 1.0 else [replace(part, weight=part.weight * share) for part in parts]
        ensure_compiled(self, parts)
        prepared, method = phases.schedule_for(self, index)
        for w in self.workers:
            w.batches |= {self.slot + i: part for i, part in enumerate(parts)}
        apply = (self.steps + 1) % self.settings.accumulate == 0 if apply is None else apply
        self.play(prepared, method, self.slot + len(parts), apply)
        if apply:
            self._step_schedulers()
        metrics = of_step(self, begin)
        self.steps += 1
        self.at.exact += self.at.coupled >= 0
        self.at.learnt |= self.method.aux == "auxnet"
        phases.note_start(self, metrics)
        check.after_step(self, metrics)
        return metrics

    def _micro_batches(self, x: Any, y: Any, index: Tensor | None, size: int | None) -> list[MicroBatch]:
        """The batch on this process's device, cut into micro-batches, with the current loss scale."""
        inputs = to_device(self._inputs(x, size), self.device)
        if self.channels_last:
            inputs = [channels_last(t) for t in inputs]
        target = to_device(y, self.device)
        shapes = [tuple(t.shape) for t in inputs]
        fit_batch(self, batch_of(tuple(self.program.input_specs), shapes) if inputs else size)
        parts = micro_batches(inputs, self.program.input_specs, target, index, self.micro, self.steps, size)
        parts = weighted(parts, self.reduction_now, self.labels)
        scale = self.workers[0].updater.scale
        parts = [replace(part, scale=scale) for part in parts] if scale != 1.0 else parts
        if isinstance(self.transport, Distributed) and not self.method.replay_buffers:  # there the targets travel
            parts[0] = parts[0].known_as(self._fingerprint(x, y, index, sum(part.size for part in parts)))
        return parts

    def _fingerprint(self, x: Any, y: Any, index: Tensor | None, size: int) -> Fingerprint:
        """Of the batch as far as this rank uses it, and its targets; compared at once at the first step."""
        assert isinstance(self.transport, Distributed)
        inputs = x if self.needs["inputs"] else None  # else it may be a placeholder
        rank, look = self.first_rank + self.rank, not self.met or self.steps % self.settings.check_every == 0
        found = of_batch(rank, size, inputs, y, index, on_gpu=look)
        if not self.met:
            self.met = True
            self.transport.headers.meet(self.steps, found)
        return found

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

    @property
    def lr(self) -> float:
        """The learning rate of this process's first stage."""
        return self.workers[0].learning_rate(None)

    @property
    def needs(self) -> dict[str, bool]:
        """Whether this process needs the batch's inputs, and its targets."""
        takes = [w for w in self.workers if w.rank == 0 or not self.method.replay_buffers]  # others draw theirs
        targets = any(w.last or w.head is not None for w in takes)
        return {"inputs": any(net.io.inputs for net in _nets(takes)), "targets": targets}

    @property
    def takes_inputs(self) -> bool:
        """Whether anything in this process, in training or evaluation, takes an input of the model."""
        return any(net.io.inputs for net in _nets(self.workers))

    def plan_steps(self, total: int) -> None:
        """Set the length of training, for a β that rises with it, unless the settings have it."""
        if self.settings.total_steps is not None:
            return
        self.options = {**self.options, "total_steps": total}
        self.settings = replace(self.settings, total_steps=total)
        for w in self.workers:
            w.settings = self.settings
            for beta in w.betas.values():
                beta.total = total
        if self.steps == 0 and phases.expand(self, self.asked) != self.recipe:
            phases.begin(self, self.asked)  # a warm-up is a part of it

    @options_checked
    def fit(
        self, loader: Iterable[Any], epochs: int = 1, *, on_step: Callable[[dict[str, Any]], None] | None = None
    ) -> Record:
        """Train for some epochs. The loader gives (x, y), or (x, y, index) for methods that need indices, or dicts; see
        `lpcompile.runtime.engine.batches.forms`.

        Between processes it is shuffled by rank 0's random state; the number of batches must be the same everywhere.
        """
        if (length := length_of(loader)) is not None:
            self.plan_steps(self.steps + epochs * length)
        compare_data(self, epochs, loader)
        metrics: dict[str, Any] = {}
        began, before, spent = time.perf_counter(), self.steps, 0.0
        for epoch in range(epochs):
            share_random(self, loader)
            if hasattr(getattr(loader, "sampler", None), "set_epoch"):
                loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            for batch in loader:
                metrics = self.step(*parts_of(self.input_names, self.loss_fn, batch))
                spent += metrics["step ms"]
                if on_step is not None:
                    on_step(metrics)
        if epochs and not metrics:
            raise InputError(EMPTY)
        shown = self._model_loss()
        self.flush()
        found = self.gather(metrics)
        if warning := verdict(self, shown):
            found["warning"] = warning
        steps = self.steps - before
        return Record(found, timing=Timing(time.perf_counter() - began, steps, spent / max(steps, 1)))

    def _model_loss(self) -> dict[str, float]:
        """The model's own loss on the last step's samples, where training goes through λ."""
        through_lam = self.plan.K > 1 and self.method.aux and not self.method.exact
        loss = check.model_loss(self) if through_lam else None
        return self.gather({} if loss is None else {"loss": loss}) if through_lam else {}

    @options_checked
    def evaluate(
        self,
        loader: Iterable[Any],
        *,
        recalibrate: Iterable[Any] | None = None,
        batches: int = evaluation.RECALIBRATION_BATCHES,
        keep: bool = False,
        aux: bool = False,
        metrics: evaluation.Metrics | None = None,
    ) -> dict[str, float]:
        """Loss and accuracy of the serial model, as means over the samples of `loader`, the same on all ranks.

        recalibrate: a loader of training data from which BatchNorm statistics are taken anew (`batches` of it) for a
        second set of figures, "recalibrated ..."; training goes on with the old ones, unless the new ones are to
        `keep`. aux: also the path through the AuxNets, as "aux ...". metrics: by name, functions from all outputs and
        all targets to a number; or one function of a batch's output and target to numbers by name, whose means are
        taken; by default loss, and accuracy for classes.
        """
        self.flush()
        return evaluation.evaluate(
            self, loader, recalibrate=recalibrate, batches=batches, keep=keep, aux=aux, metrics=metrics
        )

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
        from lpcompile.runtime.checkpoint.save import save

        return save(self, Path(folder), keep=keep)

    def load(self, folder: str | Path) -> None:
        """Go on from a checkpoint, or from the newest one in a folder of them; also one of another K."""
        from lpcompile.runtime.checkpoint import checkpoint

        checkpoint.load(self, checkpoint.find(Path(folder)))

    @property
    def trace(self) -> list[tuple[str, int, int, float, float]]:
        """(instruction, rank, step, begin, end) in seconds, with `trace=True`."""
        return [event for w in self.workers for event in w.trace or ()]


def _nets(workers: Iterable[Worker]) -> list[Net]:
    return [net for w in workers for net in (w.stage, *w.auxnets.values(), *([w.head.net] if w.head else []))]
