"""The Plan: what went where and what it costs. Every tool reads this and nothing else.

>>> program.plan.save("plan.json")
>>> print(Plan.load("plan.json"))
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_type_hints

from lpcompile.core.cost import UnitCost
from lpcompile.core.stage_io import TensorSpec
from lpcompile.core.system.atomic_file import write_text
from lpcompile.errors import PlanError

VERSION = 2
# fields that older plans lack
OPTIONAL = (
    "tied", "notes", "part", "parts", "aux_dtype", "recipe", "micro", "batch_norm", "made", "as_published", "exact",
    "choice", "ranks",
)  # fmt: skip
T = TypeVar("T")


@dataclass(frozen=True)
class StagePlan:
    """Stage k: units[first:last + 1] of the plan on rank k. Times in ms per mini-batch."""

    index: int
    first: int
    last: int
    forward: float
    backward: float
    parameters: int
    parameter_bytes: int
    saved_bytes: int
    memory_bytes: int
    arrival: float  # arrival time of its auxiliary variable
    finish: float  # end of its step
    work: float  # compute time, AuxNets included
    inputs: tuple[str, ...]  # the model inputs it needs itself
    parts: tuple[float, ...] = ()  # of its backward, where the method runs it in two: each over the undivided one


@dataclass(frozen=True)
class AuxPlan:
    """AuxNet_{k-1}, which makes the auxiliary variable of boundary k; or, for `dgl`, the head of stage k-1.

    Times in ms per mini-batch.
    """

    kind: str  # "derived", "tied", "recursive", "recursive-shared", "adapter", "whole", "cut" or "user"
    init: str
    rank: int  # that runs it
    forward: float
    backward: float
    share: float  # of its stage's cost
    budget: float  # the budget of its derivation, chosen so that `share` meets the requested one
    parameters: int
    parameter_bytes: int
    kept: tuple[str, ...]
    dropped: tuple[str, ...]
    thinned: tuple[str, ...]
    zeroed: tuple[str, ...]  # parameters of the model that a consistent start sets to zero
    violation: float | None = None  # before the first step, if it was measured
    made: str = ""  # which piece of a smaller model it is, where it was cut from one


@dataclass(frozen=True)
class BoundaryPlan:
    """Boundary k between stage k-1 and stage k: where the graph is cut and what crosses."""

    index: int
    position: int
    eval_position: int
    after: str
    path: str
    source: str
    values: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    aux: AuxPlan | None  # None if the method has no AuxNets

    @property
    def aux_rank(self) -> int:
        return -1 if self.aux is None else self.aux.rank

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self.specs)


@dataclass(frozen=True)
class Plan:
    """K balanced stages of one model for one method, with the proof of how good they are. A user asks for `world`
    ranks; K is more only where the method has virtual stages."""

    model: str
    K: int
    method: str
    cost: str
    device: str
    batch: int | None
    batch_free: bool
    aux_budget: float
    aux: str  # the form of the AuxNets; "" if the method has none
    aux_init: str
    width: int  # largest number of tensors at a boundary
    units: tuple[UnitCost, ...]
    stages: tuple[StagePlan, ...]
    boundaries: tuple[BoundaryPlan, ...]
    step: float
    lower_bound: float
    ideal: float
    serial: float
    gate: str  # "bitwise", or why the program was not checked
    tied: tuple[tuple[str, tuple[int, ...]], ...] = ()  # parameters used in several stages
    part: float = 1.0  # share of the batch that costs were measured with
    aux_dtype: str = ""  # autocast dtype of the AuxNets; "" for the model's own
    notes: tuple[str, ...] = ()
    recipe: str = ""  # the phases of training where there are several; `method` is the one that is planned for
    micro: int = 0  # micro-batches a step of `method` on these stages; 0: the method's default
    batch_norm: bool = False  # whether statistics are taken over micro-batches
    as_published: bool = False  # planned and trained with the paper's own settings
    exact: bool = False  # training refuses what does not have plain training's gradients
    choice: str = ""  # what the method means for gradients, memory and parameters; of the default, why it is that
    ranks: tuple[int, ...] = ()  # of each stage, where ranks have several (virtual stages); empty: stage k on rank k
    version: int = VERSION

    @property
    def cuts(self) -> tuple[int, ...]:
        """Units before each boundary."""
        return tuple(s.last + 1 for s in self.stages[:-1])

    @property
    def world(self) -> int:
        """Number of ranks."""
        return max(self.ranks) + 1 if self.ranks else self.K

    def rank_of(self, stage: int) -> int:
        return self.ranks[stage] if self.ranks else stage

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages of a rank."""
        return tuple(s for s in range(self.K) if self.rank_of(s) == rank)

    @property
    def training(self) -> str:
        """The method or recipe that a trainer runs by default."""
        return self.recipe or self.method

    @property
    def heads(self) -> bool:
        """Whether the networks at the boundaries are heads of the stages below, not AuxNets."""
        return not self.aux and any(b.aux is not None for b in self.boundaries)

    @property
    def gap(self) -> float:
        """Upper bound on the distance from the optimum, as a share of the lower bound."""
        return max(0.0, self.step / self.lower_bound - 1) if self.lower_bound else 0.0

    @property
    def rho(self) -> float:
        """Predicted speedup: serial time over the step time."""
        return self.serial / self.step if self.step else 1.0

    @property
    def imbalance(self) -> float:
        """Largest stage over the mean stage, AuxNets not counted."""
        costs = [s.forward + s.backward for s in self.stages]
        return max(costs) * len(costs) / sum(costs) if sum(costs) else 1.0

    @property
    def hash(self) -> str:
        """Equal plans have equal hashes: ranks compare them before they start."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        data = asdict(self)
        if not self.ranks:
            del data["ranks"]
        for boundary, plan in zip(data["boundaries"], self.boundaries, strict=True):
            boundary["specs"] = [s.to_json() for s in plan.specs]
        return data

    @staticmethod
    def from_json(data: dict[str, Any]) -> Plan:
        version = data.get("version") if isinstance(data, dict) else None
        if version != VERSION:
            raise PlanError(f"this is not a plan of version {VERSION} (version: {version!r}); make it again")
        data = {key: value for key, value in data.items() if key != "outlook"}  # what `inspect --json` adds
        data["units"] = _all("units", data, lambda u: _make(UnitCost, u))
        data["stages"] = _all(
            "stages",
            data,
            lambda s: _make(StagePlan, {**s, "inputs": tuple(s["inputs"]), "parts": tuple(s.get("parts", ()))}),
        )
        data["boundaries"] = _all("boundaries", data, _boundary)
        data["tied"] = _all("tied", data, lambda t: (str(t[0]), tuple(map(int, t[1]))))
        data["notes"] = _all("notes", data, str)
        if "ranks" in data:
            data["ranks"] = _all("ranks", data, int)
        try:
            plan = _make(Plan, data)
            _check(plan)
        except (TypeError, ValueError) as error:
            raise PlanError(f"the plan is broken: {error}; make it again") from None
        return plan

    def save(self, path: str | Path) -> None:
        write_text(Path(path), json.dumps(self.to_json(), indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> Plan:
        try:
            data = json.loads(Path(path).read_text())
        except OSError as error:
            raise PlanError(f"cannot read the plan {path}: {error.strerror}") from None
        except ValueError as error:
            raise PlanError(f"{path} is not JSON ({error}); make the plan again") from None
        try:
            return Plan.from_json(data)
        except PlanError as error:
            raise PlanError(f"{path}: {error}") from None

    def __str__(self) -> str:
        from lpcompile.core.tables import plan_text

        return plan_text(self)


def _boundary(data: dict[str, Any]) -> BoundaryPlan:
    specs = tuple(TensorSpec.from_json(s) for s in data["specs"])
    aux = data["aux"]
    if aux is not None:
        aux = _make(AuxPlan, {k: tuple(v) if isinstance(v, list) else v for k, v in aux.items()})
    return _make(BoundaryPlan, {**data, "values": tuple(data["values"]), "specs": specs, "aux": aux})


def _all(key: str, data: dict[str, Any], make: Callable[[Any], T]) -> tuple[T, ...]:
    found, items = [], data.get(key, [])
    if not isinstance(items, list | tuple):
        raise PlanError(f"the plan is broken at {key}: it is no list; make it again")
    for i, item in enumerate(items):
        try:
            found.append(make(item))
        except KeyError as error:
            raise PlanError(f"the plan is broken at {key}[{i}]: {error} is missing; make it again") from None
        except (TypeError, ValueError, AttributeError, IndexError) as error:
            raise PlanError(f"the plan is broken at {key}[{i}]: {error}; make it again") from None
    return tuple(found)


def _make(kind: type[T], data: dict[str, Any]) -> T:
    """TypeError or ValueError if the data does not fit."""
    known = get_type_hints(kind)
    unknown, missing = set(data) - set(known), [n for n in known if n not in data and n not in OPTIONAL]
    if unknown or missing:
        raise ValueError(f"missing {missing}, unknown {sorted(unknown)}")
    for name, value in data.items():
        wanted = {float: (float, int), float | None: (float, int, NoneType), int | None: (int, NoneType)}.get(
            known[name], known[name] if known[name] in (int, str, bool) else object
        )
        if not isinstance(value, wanted) or (isinstance(value, bool) and known[name] is not bool):
            raise TypeError(f"{name} is {value!r}")
    return kind(**data)


def _check(plan: Plan) -> None:
    """Check that costs are valid and that stages cover the units in order."""
    for i, unit in enumerate(plan.units):
        for name, value in asdict(unit).items():
            if name != "name" and not 0 <= value < math.inf:
                raise ValueError(f"units[{i}].{name} is {value}")
    if not plan.K == len(plan.stages) == len(plan.boundaries) + 1:
        raise ValueError(f"K is {plan.K}, with {len(plan.stages)} stages and {len(plan.boundaries)} boundaries")
    if plan.aux_dtype not in ("", "bfloat16"):
        raise ValueError(f"aux_dtype is {plan.aux_dtype!r}")
    begin = 0
    for k, stage in enumerate(plan.stages):
        if (stage.index, stage.first) != (k, begin) or not begin <= stage.last < len(plan.units):
            raise ValueError(f"stages[{k}] is stage {stage.index}, units {stage.first} to {stage.last}")
        begin = stage.last + 1
    if begin != len(plan.units):
        raise ValueError(f"the last stage ends at unit {begin - 1} of {len(plan.units)}")
    _check_ranks(plan)


def _check_ranks(plan: Plan) -> None:
    """Every stage has a rank, and AuxNets and tied parameters are on ranks that there are."""
    if plan.ranks and (len(plan.ranks) != plan.K or set(plan.ranks) != set(range(plan.world))):
        raise ValueError(f"ranks are {list(plan.ranks)} for {plan.K} stages")
    for k, boundary in enumerate(plan.boundaries):
        if boundary.index != k + 1 or not -1 <= boundary.aux_rank < plan.K:
            raise ValueError(f"boundaries[{k}] is boundary {boundary.index}, its AuxNet on rank {boundary.aux_rank}")
        if boundary.aux is not None and not 0 <= boundary.aux.rank < plan.K:
            raise ValueError(f"boundaries[{k}] has an AuxNet on rank {boundary.aux.rank} of {plan.K}")
    for name, ranks in plan.tied:
        if not all(0 <= rank < plan.K for rank in ranks):
            raise ValueError(f"{name} is tied between ranks {list(ranks)} of {plan.K}")
