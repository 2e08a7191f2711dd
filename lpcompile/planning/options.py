"""What `parallelize` was asked for, as the passes read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from lpcompile.core.plan import Plan
from lpcompile.core.progress import Progress
from lpcompile.passes.partition.options import Pins
from lpcompile.passes.partition.partition import Link
from lpcompile.planning.auxnets import AuxOptions


@dataclass(frozen=True)
class Options:
    """The arguments of `parallelize` that the passes read."""

    K: int | str
    cost: str
    method: str
    aux: AuxOptions | None  # None: no AuxNets are needed
    plan: Plan | None
    memory_limit: float | Sequence[float] | None
    pins: Pins | dict[str, Any] | None
    speeds: Sequence[float] | None
    link: Link | None
    tied: str
    max_width: int | str
    leaf: Iterable[str | type[nn.Module]]
    concrete_args: dict[str, Any] | None
    front_end: str
    threads: int | None
    gate: bool
    progress: Progress
    cache: bool

    def planner(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "aux_budget": self.aux.budget if self.aux else 0.0,
            "aux": self.aux.form.removesuffix("-shared") if self.aux else "derived",
            "memory_limit": self.memory_limit,
            "pins": self.pins,
            "speeds": self.speeds,
            "link": self.link,
        }
