"""Results of a bench as plain data, with a versioned JSON form."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lpcompile.bench.request import BenchRequest
from lpcompile.core.system.atomic_file import write_json
from lpcompile.errors import UsageError

VERSION = 1


@dataclass
class BenchRow:
    """Figures of one contender. Without `step` it has not been measured, and `why` says why.

    step: [median, lower, upper quartile] of a step in ms. rho: plain training's step over this one's; for `limit`, K
    times that, since K trainings run. of_limit: rho over the measured limit's. ranks: for each one its peak memory in
    bytes (`peak`), its share of idle time (`idle`), bytes sent per step (`sent`), and ms of a step by part (`parts`).
    built, first: seconds until the first step, and of that step.
    tried: ms of a step by number of micro-batches, where several were tried. curve: steps, seconds and test accuracy
    after each pass over a data set, where contenders trained to an accuracy.
    """

    name: str
    why: str = ""
    step: list[float] = field(default_factory=list)
    steps: int = 0
    rho: float | None = None  # None without plain training
    of_limit: float | None = None
    rate: float = 0.0
    micro: int = 1
    tried: dict[str, float] = field(default_factory=dict)
    built: float = 0.0
    first: float = 0.0
    ranks: list[dict[str, Any]] = field(default_factory=list)
    curve: list[list[float]] = field(default_factory=list)

    @property
    def reached(self) -> list[float]:
        """Steps, seconds and accuracy where the wanted accuracy was there, or where training ended."""
        return self.curve[-1] if self.curve else []

    @property
    def peak(self) -> int:
        """Bytes of the rank with the largest peak."""
        return max((r["peak"] for r in self.ranks), default=0)


@dataclass
class LinkResults:
    """The same contenders over links of one rate.

    gigabytes_per_s, latency_us: of the link, as measured before planning. simulated: ms of a step that the simulator
    predicts for that link, by contender. moved: contenders whose stages are cut elsewhere than without a limit.
    """

    rate: str
    gigabytes_per_s: float
    latency_us: float
    rows: list[BenchRow] = field(default_factory=list)
    simulated: dict[str, float] = field(default_factory=dict)
    moved: list[str] = field(default_factory=list)

    def row(self, name: str) -> BenchRow | None:
        return next((r for r in self.rows if r.name == name and r.step), None)


@dataclass
class Bench:
    """All results so far. `start`: seconds before and between steps; `scaling`: simulated; `links`: by rate, where
    the ranks are on hosts of their own. others: the share of the machine's time that other programs took."""

    request: BenchRequest
    machine: dict[str, Any] = field(default_factory=dict)
    rows: list[BenchRow] = field(default_factory=list)
    start: dict[str, float] = field(default_factory=dict)
    scaling: list[dict[str, Any]] = field(default_factory=list)
    links: list[LinkResults] = field(default_factory=list)
    others: float = 0.0
    version: int = VERSION

    def row(self, name: str) -> BenchRow | None:
        """The row of a contender, if it was measured."""
        return next((r for r in self.rows if r.name == name and r.step), None)

    def trained(self, name: str) -> BenchRow | None:
        """The row of a contender, if it was trained to an accuracy."""
        return next((r for r in self.rows if r.name == name and r.curve), None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: Any) -> Bench:
        if not isinstance(data, dict) or data.get("version") != VERSION or "rows" not in data:
            raise UsageError(f"this is no bench of version {VERSION}; run bench again")
        asked = data["request"]
        request = BenchRequest(
            **{**asked, "contenders": tuple(asked["contenders"]), "rate": tuple(asked.get("rate", ()))}
        )
        links = [LinkResults(**{**one, "rows": [BenchRow(**r) for r in one["rows"]]}) for one in data.get("links", [])]
        rows = [BenchRow(**r) for r in data["rows"]]
        return Bench(request, data["machine"], rows, data["start"], data["scaling"], links, data.get("others", 0.0))

    def save(self, file: Path) -> None:
        write_json(file, self.to_json())
