"""What a study runs: models x methods x K x seeds, read from JSON or TOML, or built in.

    {"data": "cifar10", "size": 16, "images": 12800, "validation": 5000, "epochs": 8,
     "models": ["resnet32", {"name": "thin", "family": "resnet", "width": 8, "depth": 20}],
     "methods": ["plain", "gpipe", "1f1b@0.3,stream", {"name": "dgl, heads 0.3", "method": "dgl", "aux_budget": 0.3}],
     "K": [2, 4], "seeds": 3}

A method is a recipe as `train` takes it (`stream[micro=4]`), `plain`, or `ddp` (data parallelism), or a table with
options of AuxNets and of the optimizer. {"method": "plain", "init": "consistent"} is plain training from the first
weights of a consistent start, which is the bar for methods that begin there. A list of values is tuned: every candidate
trains once per model and K and is judged on validation data, and the best one is run for all seeds.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from lpcompile.errors import UsageError
from lpcompile.runtime.methods.recipe import recipe_of
from lpcompile.sources.inputs import closest
from lpcompile.study.data import data_name
from lpcompile.study.networks import Network, network_of

PLAIN, DDP = "plain", "ddp"
TUNING_SEED = 1000  # no seed of the runs that are reported
BUILT_IN = ("smoke", "cifar10-small", "cifar10", "cifar10-long", "late")


@dataclass(frozen=True)
class Entry:
    """A method of a study. `options` are of AuxNets (aux_budget, aux, init) and of the optimizer (lr, aux_lr)."""

    name: str
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def alone(self) -> bool:
        """Plain training: there is one of it, whatever K, unless it begins as a decoupled run with K stages does."""
        return self.method == PLAIN and "init" not in self.options


OPTIONS = {
    "aux_budget": (int, float),
    "lr": (int, float),
    "aux_lr": (int, float),
    "micro": (int,),
    "aux": (str,),
    "init": (str,),
}


@dataclass(frozen=True)
class RunSpec:
    """One run: all that its result depends on. split: "test", or "validation" while an option is tuned."""

    network: Network
    entry: Entry
    K: int
    seed: int
    data: str
    size: int
    images: int
    validation: int
    epochs: int
    split: str = "test"

    @property
    def per_epoch(self) -> int:
        return self.images // self.network.batch

    @property
    def steps(self) -> int:
        return self.epochs * self.per_epoch

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(found: Mapping[str, Any]) -> RunSpec:
        return RunSpec(**{**found, "network": Network(**found["network"]), "entry": Entry(**found["entry"])})

    @property
    def key(self) -> str:
        """The same for the same run, wherever its data lie."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:16]

    def first_values(self) -> RunSpec:
        """With the first value of every option that no candidate could choose: the run says why, as they did."""
        options = {name: v[0] if isinstance(v, list) else v for name, v in self.entry.options.items()}
        return replace(self, entry=replace(self.entry, options=options))

    def __str__(self) -> str:
        where = "" if self.entry.alone else f" K={self.K}"
        return f"{self.network.name} {self.entry.name}{where} seed {self.seed}"


@dataclass(frozen=True)
class Study:
    """All runs, as a product."""

    models: tuple[Network, ...]
    methods: tuple[Entry, ...]
    K: tuple[int, ...] = (2, 4)
    seeds: int = 3
    data: str = "cifar10"
    size: int = 16
    images: int = 12_800
    validation: int = 5_000
    epochs: int = 8
    split: str = "test"

    def runs(self, chosen: Mapping[tuple[str, str, int], Mapping[str, Any]] | None = None) -> Iterator[RunSpec]:
        """The runs to report, those of one seed before the next one's. chosen: tuned options by model, method and K."""
        for seed, network, entry in itertools.product(range(self.seeds), self.models, self.methods):
            for K in [1] if entry.alone else self.K:
                options = (chosen or {}).get((network.name, entry.name, K), {})
                yield self._run(network, replace(entry, options={**entry.options, **options}), K, seed, self.split)

    def candidates(self) -> Iterator[RunSpec]:
        """The runs that choose tuned options."""
        for network, entry in itertools.product(self.models, self.methods):
            tuned = [name for name, value in entry.options.items() if isinstance(value, list)]
            for values in itertools.product(*(entry.options[name] for name in tuned)) if tuned else ():
                options = {**entry.options, **dict(zip(tuned, values, strict=True))}
                for K in [1] if entry.alone else self.K:
                    yield self._run(network, replace(entry, options=options), K, TUNING_SEED, "validation")

    def _run(self, network: Network, entry: Entry, K: int, seed: int, split: str) -> RunSpec:
        data = "text" if network.text else data_name(self.data)
        return RunSpec(network, entry, K, seed, data, self.size, self.images, self.validation, self.epochs, split)


def tuned(records: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, int], Mapping[str, Any]]:
    """The options of the most accurate candidate by model, method and K."""
    best: dict[tuple[str, str, int], Mapping[str, Any]] = {}
    for record in records:
        run = record["run"]
        if run["seed"] == TUNING_SEED and "accuracy" in record:
            key = (run["network"]["name"], run["entry"]["name"], run["K"])
            if key not in best or record["accuracy"] > best[key]["accuracy"]:
                best[key] = record
    return {key: record["run"]["entry"]["options"] for key, record in best.items()}


def load(given: str) -> dict[str, Any]:
    """The table of a study, from a file or built in."""
    path = Path(given)
    if not path.suffix:
        if given not in BUILT_IN:
            near = closest(given, list(BUILT_IN))
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(BUILT_IN)} and draw:SEED"
            raise UsageError(f"there is no study {given!r}; {hint} Or give a file, .json or .toml")
        return dict(json.loads((files("lpcompile.study") / f"{given}.json").read_text(encoding="utf-8")))
    if not path.is_file():
        raise UsageError(f"there is no file {given}; give a .json or .toml file, or one of {', '.join(BUILT_IN)}")
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".toml":
            return _toml(text, given)
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{given} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{given} holds a {type(found).__name__}; a study is a table with models and methods")
    return found


def _toml(text: str, given: str) -> dict[str, Any]:
    try:
        toml: Any = importlib.import_module("tomllib")
    except ImportError:
        raise UsageError(f"{given}: Python 3.10 reads no TOML; write the study as JSON") from None
    return dict(toml.loads(text))


def study_of(table: Mapping[str, Any], **given: Any) -> Study:
    """A checked study. `given` (from the command line) replaces what the table says, where it is not None."""
    found = {**table, **{name: value for name, value in given.items() if value is not None}}
    known = [f.name for f in fields(Study)]
    for name in found:
        if name not in known:
            near = closest(name, known)
            raise UsageError(f"a study has no {name!r}; {f'did you mean {near[0]}?' if near else ', '.join(known)}")
    for name in ("models", "methods"):
        if not isinstance(found.get(name), (list, tuple)) or not found[name]:
            raise UsageError(f"a study needs {name}, a list of one or more; it has {found.get(name)!r}")
    models = tuple(network_of(one) for one in found["models"])
    methods = tuple(entry_of(one) for one in found["methods"])
    for what, names in (("model", [m.name for m in models]), ("method", [m.name for m in methods])):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"the {what} {twice[0]!r} is there twice; give each a name of its own")
    K = found.get("K", Study.K)
    K = tuple(k for i, k in enumerate(K) if k not in K[:i]) if isinstance(K, (list, tuple)) else (K,)
    study = Study(**{**found, "models": models, "methods": methods, "K": K})
    _check(study)
    return study


def entry_of(given: Any) -> Entry:
    """A method from its text or its table."""
    if isinstance(given, str):
        given = {"method": given}
    if not isinstance(given, dict) or not isinstance(given.get("method"), str):
        raise UsageError(f"{given!r} is no method; write a recipe such as stream[micro=4], or a table with a method")
    options = {name: value for name, value in given.items() if name not in ("name", "method")}
    for name, value in options.items():
        if name not in OPTIONS:
            near = closest(name, list(OPTIONS))
            hint = f"did you mean {near[0]}?" if near else f"it may have {', '.join(OPTIONS)}"
            raise UsageError(f"method {given['method']!r} has no option {name!r} here; {hint}")
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, OPTIONS[name]) or isinstance(one, bool):
                kinds = " or ".join(kind.__name__ for kind in OPTIONS[name])
                raise UsageError(f"method {given['method']!r}: {name} {one!r} is no {kinds}")
        if value == []:
            raise UsageError(f"method {given['method']!r}: {name} is an empty list; give values to try")
    if given["method"] in (PLAIN, DDP):
        if unread := sorted(set(options) - ({"lr", "init"} if given["method"] == PLAIN else {"lr"})):
            raise UsageError(
                f"{unread[0]} has no effect on {given['method']!r}, which has no AuxNets and no micro-batches"
            )
    else:
        recipe_of(given["method"])
    return Entry(str(given.get("name", given["method"])), given["method"], options)


def _check(study: Study) -> None:
    for name, least in (("seeds", 1), ("size", 8), ("images", 1), ("validation", 1), ("epochs", 1)):
        value = getattr(study, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{name} {value!r} of a study is no whole number of {least} or more")
    if study.split not in ("test", "validation"):
        raise UsageError(f"split {study.split!r} is neither 'test' nor 'validation'")
    for K in study.K:
        if not isinstance(K, int) or isinstance(K, bool) or K < 2:
            raise UsageError(f"K {K!r} of a study is no whole number of 2 or more; plain training is a method")
    for network in study.models:
        if study.images < network.batch:
            raise UsageError(f"images {study.images} are fewer than one batch of {network.batch} of {network.name}")
