"""The runners of a comparison: one rank of a method, or the plain training loop."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from lpcompile.core.trace import Event
from lpcompile.runtime.engine.trainer import Trainer
from lpcompile.training.job import Job
from lpcompile.training.measures import bytes_between_steps, bytes_of


class Runner(Protocol):
    """Interface of the measuring loop. `keeps`: steps for which a method keeps anything; `events`: while tracing."""

    rank: int
    keeps: int
    events: list[Event] | None

    def step(self, batch: Any) -> tuple[float, int]:
        """Train on one batch; returns seconds of waiting, and bytes sent."""
        ...

    def finish(self) -> None:
        """Complete what is under way."""
        ...

    def meet(self) -> None:
        """Wait until all ranks are here."""
        ...

    def evaluate(self, test: Any, again: Any) -> dict[str, float]:
        """Figures of the serial model; also after taking BatchNorm statistics from the loader `again`."""
        ...

    def trace(self, on: bool) -> None: ...

    def freeze_rate(self) -> None:
        """From here on the learning rate stays: steps beyond what was planned are allowed."""
        ...

    def fixed(self) -> int:
        """Bytes that stay allocated between steps."""
        ...


class MethodRunner:
    """One rank of a method."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.rank = trainer, trainer.rank
        self.keeps = -(-trainer.schedule.lag // trainer.micro)
        self.events: list[Event] | None = None

    def step(self, batch: Any) -> tuple[float, int]:
        metrics = self.trainer.step(*batch)
        return metrics.get("wait ms", 0.0) / 1e3, metrics["bytes"]

    def finish(self) -> None:
        self.trainer.flush()

    def meet(self) -> None:
        dist.barrier(group=self.trainer.control)

    def evaluate(self, test: Any, again: Any) -> dict[str, float]:
        return self.trainer.evaluate(test, recalibrate=again)

    def trace(self, on: bool) -> None:
        self.events = self.trainer.workers[0].trace = [] if on else None

    def freeze_rate(self) -> None:
        self.trainer.schedulers.clear()

    def fixed(self) -> int:
        return bytes_between_steps(self.trainer.workers)


class SerialRunner:
    """The whole model in one process, by a plain training loop."""

    rank = keeps = 0

    def __init__(self, job: Job, model: nn.Module, steps: int) -> None:
        self.model = model.train()
        self.optimizer = job.optimizer_factory()(list(model.parameters()))
        make = job.scheduler_factory(job.epochs * steps)
        self.scheduler = make(self.optimizer) if make is not None else None
        self.events: list[Event] | None = None
        self.steps = 0

    def step(self, batch: Any) -> tuple[float, int]:
        times = [time.perf_counter()]
        loss = F.cross_entropy(self.model(batch[0]), batch[1])
        times.append(time.perf_counter())
        torch.autograd.backward(loss)
        times.append(time.perf_counter())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.scheduler is not None:
            self.scheduler.step()
        times.append(time.perf_counter())
        if self.events is not None:
            for i, name in enumerate(("forward", "backward", "step")):
                self.events.append((name, 0, self.steps, times[i], times[i + 1]))
        self.steps += 1
        return 0.0, 0

    def finish(self) -> None:
        pass

    def meet(self) -> None:
        pass

    def evaluate(self, test: Any, again: Any) -> dict[str, float]:
        right, loss, count = 0.0, 0.0, 0
        self.model.eval()
        with torch.no_grad():
            for x, y, *_ in test:
                found: Tensor = self.model(x)
                right += float((found.argmax(1) == y).sum())
                loss += float(F.cross_entropy(found, y)) * len(y)
                count += len(y)
        self.model.train()
        return {"accuracy": right / count, "loss": loss / count}

    def trace(self, on: bool) -> None:
        self.events = [] if on else None

    def freeze_rate(self) -> None:
        self.scheduler = None

    def fixed(self) -> int:
        return bytes_of(self.model, self.optimizer)
