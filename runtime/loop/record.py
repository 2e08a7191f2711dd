"""What `fit` returns: the figures of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lpcompile.errors import UsageError

BEST_FIRST = ("test recalibrated ", "test ", "train ")  # recalibrated statistics stay in the model at the end


@dataclass(frozen=True)
class Timing:
    """Where the time of a run went.

    seconds: the whole run, from the first batch. steps: trained in it. step_ms: mean time of a step. wait_ms: of it
    waiting for other ranks, on the rank that waited most. data_ms: mean time that a step waited for its batch, on the
    rank that waited most, besides step_ms. evaluation: seconds of evaluations.
    """

    seconds: float = 0.0
    steps: int = 0
    step_ms: float = 0.0
    wait_ms: float = 0.0
    data_ms: float = 0.0
    evaluation: float = 0.0

    def __str__(self) -> str:
        waits = f" (waits: {self.wait_ms:.1f} ms for other ranks)" if self.wait_ms else ""
        return (
            f"{self.seconds:.1f} s for {self.steps} steps: {self.step_ms:.1f} ms a step{waits}, {self.data_ms:.1f} ms "
            f"a step for data, {self.evaluation:.1f} s for evaluation"
        )


@dataclass(frozen=True)
class Record(Mapping[str, Any]):
    """The record of a training run. It is also a mapping: `record["test loss"]`, `dict(record)`.

    figures: the last figures by name, of steps ("loss", "violation 1", "step ms", ...) and evaluations ("test loss",
    "train accuracy", ...). history: a dict for each epoch, with "epoch", "step", "loss" (the mean over its steps) and
    evaluations. timing: where the time went. warning: what is not well, "" if nothing. stopped: why training ended
    before its last epoch, "" if it did not. best: the best value of the figure that was watched (`best=`), and its
    epoch.
    """

    figures: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    timing: Timing = field(default_factory=Timing)
    stopped: str = ""
    best: dict[str, Any] = field(default_factory=dict)

    @property
    def accuracy(self) -> float | None:
        """Of the model as it is now: on the test data, or else on training data; None where there is none."""
        return self._figure("accuracy")

    @property
    def loss(self) -> float | None:
        """Of the model on test data; else on training data; else of the last training step."""
        found = self._figure("loss")
        return self.figures.get("loss") if found is None else found

    @property
    def warning(self) -> str:
        return str(self.figures.get("warning", ""))

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data, ready for JSON."""
        return {"accuracy": self.accuracy, "loss": self.loss, **asdict(self)}

    def to_pandas(self) -> Any:
        """The history as a `pandas.DataFrame`, one row for each epoch."""
        try:
            import pandas
        except ImportError:
            raise UsageError("record.to_pandas() needs pandas: pip install pandas, or use record.history") from None
        return pandas.DataFrame(self.history)

    def _figure(self, name: str) -> float | None:
        return next((self.figures[at + name] for at in BEST_FIRST if at + name in self.figures), None)

    def __getitem__(self, name: str) -> Any:
        return self.figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.figures)

    def __len__(self) -> int:
        return len(self.figures)

    def __str__(self) -> str:
        from lpcompile.core.tables import table

        parts = [f"accuracy {self.accuracy:.4f}"] if self.accuracy is not None else []
        parts += [f"loss {self.loss:.4f}"] if self.loss is not None else []
        lines = [", ".join(parts) or "nothing was measured"]
        columns = list(dict.fromkeys(name for row in self.history for name in row))
        if self.history:
            lines += ["", table([[_shown(row.get(name, "")) for name in columns] for row in self.history], columns), ""]
        lines.append(str(self.timing))
        if self.best:
            lines.append(f"best {self.best['figure']}: {_shown(self.best['value'])}, after epoch {self.best['epoch']}")
        return "\n".join([*lines, *filter(None, (self.stopped, self.warning and f"warning: {self.warning}"))])

    __repr__ = __str__


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
