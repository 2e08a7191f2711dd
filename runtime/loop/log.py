"""Logs of a run: a progress line, a line of metrics every few steps, TensorBoard if installed."""

from __future__ import annotations

import csv
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpcompile.runtime.engine.trainer import Trainer
    from lpcompile.runtime.loop.options import LoopOptions

REFRESH = 0.5  # seconds between progress lines


class Log:
    """Gathers the metrics of all ranks; rank 0 writes them. All ranks call `step` and `evaluated` alike."""

    def __init__(self, trainer: Trainer, watch: LoopOptions, total: int) -> None:
        self.trainer, self.every, self.total = trainer, max(1, watch.log_every), total
        self.main = trainer.main
        self.file = _LogFile(Path(watch.log), trainer.steps) if watch.log and self.main else None
        self.board = _tensorboard(watch.tensorboard) if watch.tensorboard and self.main else None
        self.live = self.main and sys.stderr.isatty()
        self.begin, self.first, self.shown = time.perf_counter(), trainer.steps, 0.0
        self.last: dict[str, Any] = {}

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
        if self.file is not None:
            self.file.close()
        if self.board is not None:
            self.board.close()

    def step(self, metrics: dict[str, Any]) -> None:
        done = self.trainer.steps
        if done % self.every == 0 or done == self.total:
            self.last = self._known({**metrics, "lr": self.trainer.lr}, done)
            if self.file is not None:
                self.file.write(self.last)
            if self.board is not None:
                for name, value in self.last.items():
                    if isinstance(value, (int, float)):
                        self.board.add_scalar(name, value, done)
        if self.live and (time.perf_counter() - self.shown > REFRESH or done == self.total):
            self.shown = time.perf_counter()
            print(f"\r\x1b[K{self.line(metrics)}", end="", file=sys.stderr, flush=True)

    def _known(self, metrics: dict[str, Any], done: int) -> dict[str, Any]:
        """Metrics of all ranks. Ranks with replay buffers may be many steps apart: their own, until the last step."""
        if self.trainer.method.replay:
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
        known = {**self.last, **metrics}
        parts = [f"epoch {metrics.get('epoch', '?')}", f"step {done}/{self.total}", f"{rate:.2f}/s", f"{left} left"]
        if "loss" in known:
            parts.append(f"loss {known['loss']:.3f}")
        worst = [v for name, v in known.items() if name.startswith("violation")]
        if worst:
            parts.append(f"violation {max(worst):.3f}")
        return ", ".join(parts)

    def clear(self) -> None:
        if self.live and self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def evaluated(self, epoch: int, shown: dict[str, float]) -> None:
        if self.trainer.method.replay and self.last:
            self.last = self._together(self.last)
        if not self.main:
            return
        self.clear()
        text = ", ".join(f"{name} {value:.4f}" for name, value in shown.items())
        print(f"epoch {epoch}: {text} ({_clock(time.perf_counter() - self.begin)})", flush=True)
        if self.file is not None:
            self.file.write({"step": self.trainer.steps, "epoch": epoch, **shown})
        if self.board is not None:
            for name, value in shown.items():
                self.board.add_scalar(name, value, self.trainer.steps)


class _LogFile:
    """JSON lines, or CSV if the file is named so. A resumed run keeps the lines before its checkpoint."""

    def __init__(self, file: Path, steps: int) -> None:
        self.path, self.csv, self.names = file, file.suffix == ".csv", list[str]()
        file.parent.mkdir(parents=True, exist_ok=True)
        keep: list[str] = []
        if steps and file.exists():
            lines = file.read_text().splitlines(keepends=True)
            if self.csv:
                self.names = next(csv.reader(lines[:1]), [])
            keep = [line for i, line in enumerate(lines) if self._before(line, i, steps)]
        self.out = open(file, "w", newline="")  # noqa: SIM115
        self.out.writelines(keep)
        self.out.flush()

    def _before(self, line: str, i: int, steps: int) -> bool:
        if not line.endswith("\n"):
            return False
        if not self.csv:
            return bool(json.loads(line)["step"] < steps)
        return i == 0 or int(next(csv.reader([line]))[self.names.index("step")]) < steps

    def write(self, row: dict[str, Any]) -> None:
        if not self.csv:
            self.out.write(json.dumps(row) + "\n")
        else:
            if any(name not in self.names for name in row):
                self._widen([*self.names, *(name for name in row if name not in self.names)])
            csv.writer(self.out).writerow([row.get(name, "") for name in self.names])
        self.out.flush()

    def _widen(self, names: list[str]) -> None:
        """A new column: evaluations have others than steps."""
        before = list(csv.reader(self.path.open(newline="")))[1:]
        self.names = names
        self.out.close()
        self.out = open(self.path, "w", newline="")  # noqa: SIM115
        csv.writer(self.out).writerows([names, *(row + [""] * (len(names) - len(row)) for row in before)])

    def close(self) -> None:
        self.out.close()


def _tensorboard(folder: str) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        print("TensorBoard is not installed: no events are written (pip install tensorboard)", file=sys.stderr)
        return None
    return SummaryWriter(folder)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
