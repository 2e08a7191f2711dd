"""Loggers: files of lines, TensorBoard, Weights & Biases, all with `log(figures, step)` and `close()`.

>>> program.fit(loss_fn, loader, 3, optimizer=sgd, loggers=[WeightsAndBiases("my-project"), TensorBoard("events/")])
"""

from __future__ import annotations

import csv
import json
import logging
from pathlib import Path
from typing import Any

from lpcompile.errors import UsageError

log = logging.getLogger("lpcompile")


class LogFile:
    """JSON lines, or CSV if the file is named so. A run resumed at `step` keeps the lines before it."""

    def __init__(self, file: str | Path, step: int = 0) -> None:
        self.path = Path(file)
        self.csv, self.names = self.path.suffix == ".csv", list[str]()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        keep: list[str] = []
        if step and self.path.exists():
            lines = self.path.read_text().splitlines(keepends=True)
            if self.csv:
                self.names = next(csv.reader(lines[:1]), [])
            keep = [line for i, line in enumerate(lines) if self._before(line, i, step)]
        self.out = open(self.path, "w", newline="")  # noqa: SIM115
        self.out.writelines(keep)
        self.out.flush()

    def _before(self, line: str, i: int, steps: int) -> bool:
        if not line.endswith("\n"):
            return False
        try:
            if not self.csv:
                return bool(json.loads(line)["step"] < steps)
            return i == 0 or int(next(csv.reader([line]))[self.names.index("step")]) < steps
        except (ValueError, LookupError, TypeError, StopIteration, RecursionError):
            log.warning("line %d of %s cannot be read and is left out", i + 1, self.path)
            return False

    def log(self, figures: dict[str, Any], step: int) -> None:
        if not self.csv:
            self.out.write(json.dumps(figures) + "\n")
        else:
            if any(name not in self.names for name in figures):
                self._widen([*self.names, *(name for name in figures if name not in self.names)])
            csv.writer(self.out).writerow([figures.get(name, "") for name in self.names])
        self.out.flush()

    def _widen(self, names: list[str]) -> None:
        """Add columns to the file: evaluations have other figures than steps."""
        before = list(csv.reader(self.path.open(newline="")))[1:]
        self.names = names
        self.out.close()
        self.out = open(self.path, "w", newline="")  # noqa: SIM115
        csv.writer(self.out).writerows([names, *(row + [""] * (len(names) - len(row)) for row in before)])

    def close(self) -> None:
        self.out.close()


class TensorBoard:
    """Events in a folder; needs the package tensorboard."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UsageError("TensorBoard is not installed: pip install tensorboard, or log to a file") from None
        self.writer: Any = SummaryWriter(str(folder))

    def log(self, figures: dict[str, Any], step: int) -> None:
        for name, value in numbers(figures).items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases; needs the package wandb. `options` are those of `wandb.init`."""

    def __init__(self, project: str | None = None, **options: Any) -> None:
        try:
            import wandb
        except ImportError:
            raise UsageError("Weights & Biases is not installed: pip install wandb, or log to a file") from None
        self.run: Any = wandb.init(project=project, **options)

    def log(self, figures: dict[str, Any], step: int) -> None:
        self.run.log(numbers(figures), step=step)

    def close(self) -> None:
        self.run.finish()


def numbers(figures: dict[str, Any]) -> dict[str, float]:
    """The figures that can be drawn over steps."""
    return {n: v for n, v in figures.items() if isinstance(v, (int, float)) and not isinstance(v, bool) and n != "step"}
