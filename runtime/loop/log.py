"""Logs of a run: a progress line, and the figures of all ranks every few steps for loggers and callbacks."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from lpcompile.errors import UsageError
from lpcompile.runtime.loop.callbacks import Logger
from lpcompile.runtime.loop.loggers import LogFile, TensorBoard, WeightsAndBiases
from lpcompile.runtime.loop.record import Timing

if TYPE_CHECKING:
    from lpcompile.runtime.engine.trainer import Trainer
    from lpcompile.runtime.loop.options import LoopOptions

log = logging.getLogger("lpcompile")
REFRESH = 0.5  # seconds between progress lines
DATA_SHOWN = 0.02  # share of the time that waits for data from which the progress line says so


class Log:
    """Gathers the metrics of all ranks; rank 0 writes them. All ranks call `step` and `evaluated` alike."""

    def __init__(self, trainer: Trainer, watch: LoopOptions, total: int) -> None:
        self.trainer, self.every, self.total = trainer, max(1, watch.log_every), total
        self.main = trainer.main
        self.loggers = loggers_of(watch, trainer.steps) if self.main else []
        self.live = self.main and sys.stderr.isatty()
        self.begin, self.first, self.shown = time.perf_counter(), trainer.steps, 0.0
        self.last: dict[str, Any] = {}
        self.sums = {"step ms": 0.0, "wait ms": 0.0, "data ms": 0.0}
        self.model: dict[str, float] = {}  # the model's own loss, until it is written: a check is not due at every line
        self.waited, self.evaluation = 0.0, 0.0  # share of the last steps that waited for data; s of evaluations

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        for logger in self.loggers:
            with contextlib.suppress(OSError):  # what could not be written was said
                logger.close()

    def step(self, metrics: dict[str, Any]) -> bool:
        """Whether this step is one of those whose figures are gathered, into `last`."""
        done = self.trainer.steps
        for name in self.sums:
            self.sums[name] += metrics.get(name, 0.0)
        own = metrics.get("step ms", 0.0) + metrics.get("data ms", 0.0)
        self.waited += 0.1 * (metrics.get("data ms", 0.0) / (own or 1.0) - self.waited)
        due = done % self.every == 0 or done == self.total
        self.model |= {name: value for name, value in metrics.items() if name == "model loss"}
        if due:
            self.last = self._known({**metrics, **self.model, "lr": self.trainer.lr}, done)
            self._write(self.last, done)
            self.model = {}
        if self.live and (time.perf_counter() - self.shown > REFRESH or done == self.total):
            self.shown = time.perf_counter()
            print(f"\r\x1b[K{self.line(metrics)}", end="", file=sys.stderr, flush=True)
        return due

    def _write(self, figures: dict[str, Any], step: int) -> None:
        for logger in self.loggers:
            try:
                logger.log(figures, step)
            except OSError as error:  # a full disk is no reason to lose the run
                log.error("step %d cannot be logged: %s; training goes on", step, error)

    def _known(self, metrics: dict[str, Any], done: int) -> dict[str, Any]:
        """Metrics of all ranks. Ranks with replay buffers may be many steps apart: their own, until the last step."""
        if self.trainer.method.replay_buffers:
            if done < self.total:
                return metrics
            self.trainer.flush()  # the slowest rank may take longer to get there than a gather would wait
        return self._together(metrics)

    def _together(self, metrics: dict[str, Any]) -> dict[str, Any]:
        found = self.trainer.gather({**metrics, "replica": None})
        del found["replica"]
        return found

    def line(self, metrics: dict[str, Any]) -> str:
        """The progress line: step, rate, time left, loss and the largest violation, as far as known."""
        done, spent = self.trainer.steps, time.perf_counter() - self.begin
        rate = (done - self.first) / spent if spent > 0 else 0.0
        left = _clock((self.total - done) / rate) if rate else "?"
        known = {**self.last, **self.model, **metrics}
        parts = [f"epoch {metrics.get('epoch', '?')}", f"step {done}/{self.total}", f"{rate:.2f}/s", f"{left} left"]
        if "loss" in known:
            beside = f" (model {known['model loss']:.3f})" if "model loss" in known else ""
            parts.append(f"loss {known['loss']:.3f}{beside}")
        worst = [v for name, v in known.items() if name.startswith("violation")]
        if worst:
            parts.append(f"violation {max(worst):.3f}")
        if self.waited > DATA_SHOWN:
            parts.append(f"data {100 * self.waited:.0f} %")
        if "phase" in known or "exact steps" in known:
            parts.append(str(known["method"]))
        return ", ".join(parts)

    def clear(self) -> None:
        if self.live and self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def evaluated(self, epoch: int, shown: dict[str, float], seconds: float = 0.0) -> None:
        self.evaluation += seconds
        if self.trainer.method.replay_buffers and self.last:
            self.last = self._together(self.last)
        if not self.main:
            return
        self.clear()
        text = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
        print(f"epoch {epoch}: {text} ({_clock(time.perf_counter() - self.begin)})", flush=True)
        self._write({"step": self.trainer.steps, "epoch": epoch, **shown}, self.trainer.steps)

    def timing(self) -> Timing:
        """Where the time went, on the slowest rank; all ranks call it."""
        steps = self.trainer.steps - self.first
        found = self.trainer.gather({name: value / max(steps, 1) for name, value in self.sums.items()})
        return Timing(
            time.perf_counter() - self.begin, steps, found["step ms"], found["wait ms"], found["data ms"],
            self.evaluation,
        )  # fmt: skip


def loggers_of(watch: LoopOptions, step: int) -> list[Logger]:
    """The loggers that options of the loop ask for."""
    found: list[Logger] = [LogFile(watch.log, step)] if watch.log else []
    if watch.tensorboard:
        try:
            found.append(TensorBoard(watch.tensorboard))
        except UsageError:
            print("TensorBoard is not installed: no events are written (pip install tensorboard)", file=sys.stderr)
    if watch.wandb:
        found.append(WeightsAndBiases(watch.wandb))
    return found


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
