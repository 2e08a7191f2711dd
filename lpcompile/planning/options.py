"""The options of `parallelize`, checked, as the passes read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from lpcompile.core.method import Method
from lpcompile.core.plan import Plan
from lpcompile.core.system.progress import Progress, silent
from lpcompile.errors import UsageError
from lpcompile.passes.auxnet.measure import CALIBRATION_SECONDS
from lpcompile.passes.partition.evaluate import Link
from lpcompile.passes.partition.options import Pins
from lpcompile.passes.profile.measure import MEASURING_SECONDS
from lpcompile.passes.profile.profile import SOURCES
from lpcompile.planning.auxiliary.auxnets import AuxOptions
from lpcompile.runtime.methods import get_method


@dataclass(frozen=True)
class Options:
    """See `parallelize` for what each means."""

    K: int | str
    cost: str
    method: str
    aux: AuxOptions | None  # None: no AuxNets are needed
    plan: Plan | None = None
    memory_limit: float | Sequence[float] | None = None
    pins: Pins | dict[str, Any] | None = None
    speeds: Sequence[float] | None = None
    link: Link | None = None
    tied: str = "replicate"
    max_width: int | str = "auto"
    leaf: Iterable[str | type[nn.Module]] = ()
    concrete_args: dict[str, Any] | None = None
    front_end: str = "auto"
    threads: int | None = None
    gate: bool = True
    progress: Progress = silent
    cache: bool = True
    placement: str = "best"  # host ranks of AuxNets: the better one, or always the one "below" the boundary
    balance: str = "work"  # stages are balanced with the AuxNets' "work", or as "stages" alone
    as_published: bool = False
    exact: bool = False
    measure_seconds: float = MEASURING_SECONDS
    compile: bool = False  # costs are of units that torch.compile made
    recipe: str = ""  # the phases of training; "" where there is only `method`

    @property
    def traits(self) -> Method:
        return get_method(self.method)

    def checked(self) -> Options:
        """Return itself, or raise UsageError for an invalid value."""
        K, max_width, threads = self.K, self.max_width, self.threads
        if self.cost not in SOURCES:
            raise UsageError(f"cost={self.cost!r} is not one of {', '.join(SOURCES)}")
        if not (K == "auto" or (isinstance(K, int) and not isinstance(K, bool) and K >= 1)):
            raise UsageError(f"K={K!r} is neither a number of stages (1 or more) nor 'auto'")
        if K == "auto" and self.traits.chunks > 1:
            raise UsageError(
                f"K='auto' chooses among plans with one stage a rank, and {self.method!r} has more; give K"
            )
        if not (max_width == "auto" or (isinstance(max_width, int) and max_width >= 1)):
            raise UsageError(f"max_width={max_width!r} is neither a number of tensors (1 or more) nor 'auto'")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise UsageError(f"threads={threads!r} is not a number of threads (1 or more)")
        for name, value, known in (
            ("placement", self.placement, ("best", "below")),
            ("balance", self.balance, ("work", "stages")),
        ):
            if value not in known:
                raise UsageError(f"{name}={value!r} is not one of {', '.join(known)}")
        if self.as_published and not self.traits.aux:
            raise UsageError(
                f"as_published=True is the paper's method, with auxiliary variables, and {self.method!r} has none; "
                f"leave method out, or name 'penalty', 'lagrangian' or 'penalty-stored'"
            )
        seconds = self.measure_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise UsageError(f"measure_seconds={seconds!r} is not a number of seconds above 0")
        if self.aux is not None:
            self.aux.check()
        return self

    @property
    def calibration_seconds(self) -> float:
        """For AuxNets, or for the two parts of a split backward."""
        return self.measure_seconds * CALIBRATION_SECONDS / MEASURING_SECONDS

    def following(self, plan: Plan) -> Options:
        """Options that reproduce the stages and AuxNets of this plan."""
        aux = self.aux
        if aux is not None:
            aux = AuxOptions(
                plan.aux_budget, plan.aux or aux.form, plan.aux_init or aux.init, aux.given, plan.aux_dtype
            )
        return replace(
            self,
            K=plan.world,
            cost=plan.cost,
            method=plan.method,
            max_width=plan.width,
            plan=plan,
            aux=aux,
            as_published=plan.as_published,
            exact=plan.exact,
        )

    def planner(self) -> dict[str, Any]:
        """Keyword arguments of `partition`."""
        return {
            "method": self.method,
            "aux_budget": self.aux.budget if self.aux else 0.0,
            "aux": self.aux.form.removesuffix("-shared") if self.aux else "derived",
            "memory_limit": self.memory_limit,
            "pins": self.pins,
            "speeds": self.speeds,
            "link": self.link,
        }
