"""Results of a comparison as plain data, with a versioned JSON form."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lpcompile.compare.request import CompareRequest
from lpcompile.core.system.atomic_file import write_json
from lpcompile.errors import UsageError

VERSION = 1


@dataclass
class MethodRow:
    """Figures of one method. Without `seconds` it has not been measured, and `why` says why.

    seconds: training time of every epoch; accuracy: after it; recalibrated: after the last, with BatchNorm statistics
    taken anew. rho: [median, lowest, highest] of plain training's epoch over this one's. reached: seconds of training
    until the target. sent: bytes per step, over all ranks. ranks: shares of time idle and lost (the core worked for
    others), bytes sent, most bytes of tensors and of the process. zeroed: parameters that a consistent start set to
    zero. marks: [✓ or ×, why] by the paper's names. timeline: see `lpcompile.compare.timeline`.
    """

    method: str
    why: str = ""
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    recalibrated: float | None = None
    rate: float = 0.0
    rho: list[float] = field(default_factory=list)
    reached: float | None = None
    sent: int = 0
    zeroed: int = 0
    micro: int = 1
    ranks: list[dict[str, float]] = field(default_factory=list)
    marks: dict[str, list[str]] = field(default_factory=dict)
    timeline: list[list[dict[str, Any]]] = field(default_factory=list)

    @property
    def epoch(self) -> float:
        """Seconds of an epoch. The first one is warm-up."""
        return statistics.median(self.seconds[1:] or self.seconds)


@dataclass
class Comparison:
    """All results so far. `serial` is plain training on one core; `target` the accuracy to reach."""

    request: CompareRequest
    machine: dict[str, Any] = field(default_factory=dict)
    serial: MethodRow | None = None
    target: float = 0.0
    rows: list[MethodRow] = field(default_factory=list)
    version: int = VERSION

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Comparison:
        if not isinstance(data, dict) or data.get("version") != VERSION:
            raise UsageError(f"this is no comparison of version {VERSION}; run compare again")
        request = CompareRequest(**{**data["request"], "methods": tuple(data["request"]["methods"])})
        serial = MethodRow(**data["serial"]) if data["serial"] else None
        return Comparison(request, data["machine"], serial, data["target"], [MethodRow(**row) for row in data["rows"]])

    def save(self, file: Path) -> None:
        write_json(file, self.to_json())
