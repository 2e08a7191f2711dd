"""Which run stands for each figure of the paper, and what is run beside it.

"penalty + AuxNet" is Algorithm 1 with a smaller model of the family as AuxNet, trained by lpcompile's settings but
decoupled to the end after a short exact warm-up: exact steps that come back where λ is far from X (`recouple`) would
make runs of different AuxNets the same. "The same as published" is by the paper's settings. Table 7 is about the
latter, and the ablation goes from each to the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lpcompile.errors import UsageError
from lpcompile.paper import networks
from lpcompile.paper.printed import BY_KEY, DERIVED
from lpcompile.paper.scales import Scale
from lpcompile.runtime.penalty.published import BETA, beta_of
from lpcompile.sources.inputs import closest
from lpcompile.study.config import PLAIN, Entry, RunSpec
from lpcompile.study.data import data_name
from lpcompile.study.networks import Network

ABLATION = "ablation"
START_ROW, START = "penalty, lpcompile's settings", "BP from a consistent start's first weights"  # rows of Table 4
ORDER = ("4", "6", "8", "7", "5", "3", "5f", "9", "10", ABLATION)  # the most telling first
NONE: dict[str, Any] = {"augment": 0}
TRAINED_BY = {  # Table 10 of the full scale
    "BP": "-K 1 --schedule steps",
    "FR": "-K 2 --method fr --schedule steps",
    "Sync-DGL": "-K 2 --method dgl --schedule steps",
    "penalty + AuxNet": "-K 2 --as-published --beta 6104 --auxnet torchvision:resnet18 --schedule steps",
}
MOST_WARM_UP = 200  # exact steps at the most, as in the trainer; else a tenth of a run
HELD = 1  # training images that a study holds out, at least one
PUBLISHED: dict[str, Any] = {"as_published": True}


@dataclass(frozen=True)
class TableRow:
    """A row of our table. printed: the paper's column it stands for, "" where the paper has none."""

    name: str
    printed: str
    runs: tuple[RunSpec, ...]  # one for each seed
    note: str = ""


@dataclass(frozen=True)
class Experiments:
    """The rows of every table at one scale, on one data set."""

    scale: Scale
    data: str
    device: str = "cpu"

    def of(self, key: str) -> Experiments:
        """The same with the data and epochs of this table: Table 9 of the paper is on CIFAR-100."""
        if key != "9":
            return self
        named = self.scale.name == "full" and self.data.partition(":")[0] == "cifar10"
        data = self.data.replace("cifar10", "cifar100", 1) if named else self.data
        return replace(self, data=data, scale=replace(self.scale, epochs=self.scale.wide_epochs or self.scale.epochs))

    def rows(self, key: str) -> list[TableRow]:
        return self.of(key)._rows(key)

    def _rows(self, key: str) -> list[TableRow]:
        makers = {"3": self._table_3, "5f": self._figure_5, "4": self._table_4, "5": self._table_5, "6": self._table_6,
                  "7": self._table_7, "8": self._table_8, "9": self._table_9, "10": self._table_10,
                  ABLATION: self._ablation}  # fmt: skip
        return makers[key]()

    # the runs of a row

    def _net(self, depth: int) -> Network:
        return networks.resnet(depth, self.scale.width, self.scale.batch, self.scale.lr)

    def _row(
        self, name: str, printed: str, network: Network, method: str, K: int = 3, note: str = "", **options: Any
    ) -> TableRow:
        scale = self.scale
        sizes = {"curve": scale.curve, "evaluated": scale.evaluated}
        given = {**sizes, **options, **({"device": self.device} if self.device != "cpu" else {})}
        # the entry's name is the method's, so that runs that tables share are one
        entry = Entry(method, method, given)
        runs = tuple(
            RunSpec(
                network,
                entry,
                1 if method == PLAIN else K,
                seed,
                data_name(self.data),
                scale.size,
                scale.images,
                HELD,
                scale.epochs,
            )
            for seed in range(scale.seeds)
        )  # fmt: skip
        return TableRow(name, printed, runs, note)

    def _warmup(self) -> int:
        return min(MOST_WARM_UP, self.scale.epochs * (self.scale.images // self.scale.batch) // 10)

    def _decoupled(self) -> dict[str, Any]:
        return {"warmup": self._warmup(), "recouple": 0.0, "collapse": "warn"}

    def _ours(self, name: str, printed: str, network: Network, aux: int, K: int = 3, **options: Any) -> TableRow:
        return self._row(name, printed, network, "penalty", K, auxnet=aux, **{**self._decoupled(), **options})

    def _published(
        self, network: Network, aux: int, name: str = "the same as published", printed: str = "", **options: Any
    ) -> TableRow:
        return self._row(name, printed, network, "penalty", auxnet=aux, **{**PUBLISHED, **options})

    def _lpcompile(self, network: Network, K: int = 3) -> TableRow:
        """The same method with lpcompile's own settings and AuxNets."""
        return self._row(START_ROW, "", network, "penalty", K, init="consistent")

    def _start(self, network: Network, **options: Any) -> TableRow:
        """BP from the model that a consistent start makes, which is the bar for what begins there."""
        note = "branches that its AuxNets lack begin at zero"
        return self._row(START, "", network, PLAIN, init="consistent", note=note, **options)

    # the tables

    def _table_3(self) -> list[TableRow]:
        net, aux = self._net(self.scale.shallow), self.scale.aux
        stored = "penalty stored, no augmentation"
        return [
            self._row("BP, no augmentation", "BP, no augmentation", net, PLAIN, **NONE),
            self._row(stored, stored, net, "penalty-stored", **NONE),
            self._row("AL, κ stored, λ by AuxNets", "AL stored, no augmentation", net, "lagrangian", **NONE, auxnet=aux,
                      **self._decoupled(), note="lpcompile keeps κ of every sample; its λ come from AuxNets"),
            self._row("BP, augmentation", "BP, augmentation", net, PLAIN),
            self._ours("penalty + AuxNet, augmentation", "penalty + AuxNet, augmentation", net, aux),
            self._ours("penalty + AuxNet, no augmentation", "", net, aux, **NONE),
            self._published(net, aux),
        ]  # fmt: skip

    def _figure_5(self) -> list[TableRow]:
        net = self._net(self.scale.shallow)
        rows = []
        for ratio in (1, 3):
            rows.append(self._row(f"BP, ratio {ratio}", f"BP, ratio {ratio}", net, PLAIN, augment=ratio))
            rows.append(self._row(f"penalty stored, ratio {ratio}", f"penalty stored, ratio {ratio}", net,
                                  "penalty-stored", augment=ratio))  # fmt: skip
        rows.append(self._row("BP, ratio ∞", "BP, ratio ∞", net, PLAIN))
        rows.append(self._ours("penalty + AuxNet, ratio ∞", "penalty + AuxNet, ratio ∞", net, self.scale.aux))
        return rows

    def _table_4(self) -> list[TableRow]:
        depths, base = self.scale.ladder, self._net(self.scale.ladder[0])
        names = [c.name for c in BY_KEY["4"].columns[1:]]
        ours = [self._ours(f"AuxNet ResNet-{d}", names[i], base, d) for i, d in enumerate(_as_many(depths, names))]
        return [
            self._row(f"BP (ResNet-{depths[0]})", "BP", base, PLAIN),
            *ours,
            self._row("AuxNets derived, 0.1 of a stage", "", base, "penalty", aux_budget=0.1, **self._decoupled()),
            self._lpcompile(base),
            self._start(base),
            self._published(base, self.scale.aux),
        ]

    def _table_5(self) -> list[TableRow]:
        names, aux = ("ResNet-110", "ResNet-54", "ResNet-32"), self.scale.aux
        deeper = [d for d in self.scale.ladder if d > aux][:3]
        pairs = list(zip(deeper, names, strict=False))
        return [self._row(f"ResNet-{d}, BP", f"{name}, BP", self._net(d), PLAIN) for d, name in pairs] + [
            self._ours(f"ResNet-{d}, decoupled", f"{name}, decoupled", self._net(d), aux) for d, name in pairs
        ]

    def _table_6(self) -> list[TableRow]:
        net, aux = self._net(self.scale.ladder[0]), self.scale.stages_aux
        note = f"AuxNet ResNet-{aux}"
        return [
            self._row("K = 1", "K = 1", net, PLAIN)
            if K == 1
            else self._ours(f"K = {K}", f"K = {K}", net, aux, K, note=note)
            for K in self.scale.stages
        ]

    def _table_7(self) -> list[TableRow]:
        net, aux = self._net(self.scale.ladder[0]), self.scale.aux
        rows = [
            self._published(net, aux, name, name, **({} if beta == BETA else {"beta": beta_of(beta)}))
            for name, beta in (("β = 10³", 1e3), ("β = 10⁴", 1e4), ("β = 10⁵", BETA), ("β = 10⁶", 1e6))
        ]
        rows.append(self._published(net, aux, "raw ℓ2 as a sum, β = 10⁵", psi="l2", beta=BETA))
        rows.append(self._published(net, aux, "raw ℓ2 as a mean, β = 10⁵", beta=BETA))
        rows += [self._ours(f"scale-free ψ, constant β = {b:g}", "", net, aux, beta=b) for b in (0.3, 3.0, 30.0)]
        return [*rows, self._ours("scale-free ψ, rising β", "", net, aux)]

    def _table_8(self) -> list[TableRow]:
        net, aux = self._net(self.scale.ladder[0]), self.scale.aux
        return [
            self._row("BP", "BP", net, PLAIN),
            self._row("penalty stored", "penalty stored", net, "penalty-stored", **NONE),
            self._row("DDG", "DDG", net, "ddg"),
            self._row("FR", "FR", net, "fr"),
            self._ours("penalty + AuxNet", "penalty + AuxNet", net, aux),
            self._published(net, aux),
            self._row("stream", "", net, "stream"),
            self._row("dgl", "", net, "dgl"),
            self._row("multiplier", "", net, "multiplier", init="consistent"),
        ]

    def _table_9(self) -> list[TableRow]:
        scale = self.scale
        net = networks.wide(*scale.wide, scale.batch, scale.lr)
        names = ("AuxNet WRN-28-10", "AuxNet WRN-16-10")[-len(scale.wide_aux) :]
        beta = {"0": 1.0, str(scale.epochs / 4): 10.0}  # × 10 after a quarter, of a scale-free ψ
        return [
            self._row(f"BP ({net.name})", "BP", net, PLAIN),
            *(self._ours(f"AuxNet WRN-{d}-{scale.wide[1]}", name, net, d, beta=beta)
              for d, name in zip(scale.wide_aux, names, strict=True)),
        ]  # fmt: skip

    def _table_10(self) -> list[TableRow]:
        if self.scale.name == "full":
            return [TableRow(c.name, c.name, (), _imagenet(c.name)) for c in BY_KEY["10"].columns]
        lr = self.scale.bottleneck_lr
        net = networks.imagenet(50, self.scale.bottleneck, self.scale.batch, lr)
        note = f"learning rate {lr:g} in this table" if lr != self.scale.lr else ""
        return [
            self._row("BP", "BP", net, PLAIN, note=note),
            self._row("FR", "FR", net, "fr", 2),
            self._row("Sync-DGL", "Sync-DGL", net, "dgl", 2),
            self._ours("penalty + AuxNet", "penalty + AuxNet", net, 18, 2),
        ]

    def _ablation(self) -> list[TableRow]:
        net = self._net(self.scale.ladder[0])
        ours: dict[str, dict[str, Any]] = {  # one of lpcompile's settings in place of the paper's
            "as published (derived AuxNets)": {},
            "… but a consistent start": {"init": "consistent"},
            "… but scale-free ψ, β = 3": {"psi": "scaled", "beta": 3.0},
            "… but a rising β": {"beta": [beta_of(BETA) / 6, beta_of(BETA)]},
            "… but no noise on λ": {"noise": 0.0},
            "… but AuxNets descend λ's gradient": {"distil": "gradient"},
            "… but clipped gradients": {"clip": 2.0},
            "… but an exact warm-up": {"warmup": self._warmup()},
            "… but re-coupling": {"recouple": 0.5},
            "… but the best placement": {"placement": "best"},
            "… but balance with AuxNets": {"balance": "work"},
        }
        theirs: dict[str, dict[str, Any]] = {  # the other way round
            "lpcompile's settings": {"init": "consistent"},
            "lpcompile's but fresh AuxNets": {},
            "lpcompile's but ψ not scaled, β = 6.1": {"init": "consistent", "psi": "mse", "beta": beta_of(BETA)},
            "lpcompile's but a constant β = 3": {"init": "consistent", "beta": 3.0},
            "lpcompile's but noise on λ": {"init": "consistent", "noise": 0.01},
            "lpcompile's but no clipping": {"init": "consistent", "clip": 0.0},
            "lpcompile's but no re-coupling": {"init": "consistent", "recouple": 0.0, "collapse": "warn"},
            "lpcompile's but placement below": {"init": "consistent", "placement": "below"},
            "lpcompile's but stages balanced alone": {"init": "consistent", "balance": "stages"},
        }
        budget = {"aux_budget": 0.1}
        rows = [self._row(n, "", net, "penalty", **{**PUBLISHED, **budget, **o}) for n, o in ours.items()]
        rows += [self._row(n, "", net, "penalty", **{**budget, **o}) for n, o in theirs.items()]
        return [*rows, self._row("BP", "", net, PLAIN), self._start(net, **budget)]


def _imagenet(column: str) -> str:
    return (
        "ImageNet is not kept in memory as other data are here; python -m lpcompile train torchvision:resnet50 "
        f"{TRAINED_BY[column]} --data imagenet:DIR --epochs 90 --lr 0.1"
    )


def _as_many(depths: tuple[int, ...], names: list[str]) -> list[int]:
    """The baseline itself and the smallest ones, as many as the paper has."""
    return list(depths) if len(depths) <= len(names) else [depths[0], *depths[-(len(names) - 1) :]]


def keys_of(given: list[str]) -> list[str]:
    """The tables asked for, all by default: those derived from schedules, then in the order in which they are run."""
    every = (*DERIVED, *ORDER)
    names = {**{key: key for key in every}, **{f"table{key}": key for key in every}, "figure5": "5f"}
    found = []
    for name in given:
        key = names.get(name.lower().replace(" ", ""))
        if key is None:
            near = closest(name, list(names))
            raise UsageError(
                f"there is no table {name!r}, only {', '.join(every)}{f'; did you mean {near[0]}?' if near else ''}"
            )
        found.append(key)
    return [key for key in every if key in found] if found else list(every)
