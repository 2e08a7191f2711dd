"""Pages of a bench and of a comparison, from figures that nobody measured: for the browser tests."""

from __future__ import annotations

from lpcompile.bench import page as bench_page
from lpcompile.bench.contenders.ways import CONTENDERS, LIMIT, PLAIN, THREADS
from lpcompile.bench.request import BenchRequest
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.compare import page as compare_page
from lpcompile.compare.properties import NAMES
from lpcompile.compare.request import CompareRequest
from lpcompile.compare.results import Comparison, MethodRow
from lpcompile.runtime.methods import METHODS

MACHINE = {"torch": "2.15", "cores": 2, "date": "2026-11-18"}
MB = 2**20


def bench(alone: bool = True) -> Bench:
    """Every contender once; the second one could not run."""
    rows = []
    for i, name in enumerate(CONTENDERS):
        if i == 1:
            rows.append(BenchRow(name, why="cannot: a batch of 5 has no 2 equal parts"))
            continue
        step = 600.0 if name == PLAIN else 310.0 + 9 * i
        ranks = 1 if name in (PLAIN, THREADS) else 2
        parts = {"forward": 0.35 * step, "backward": 0.5 * step, "optimizer": 2.0, "transfer": 3.0, "python": 0.6,
                 "wait": 0.1 * step, "aux": 8.0 if name in METHODS and METHODS[name].has_aux else 0.0}  # fmt: skip
        own = [{"peak": (100 + 7 * i) * MB, "idle": 0.05, "sent": 3 * MB, "parts": parts}] * ranks
        rows.append(BenchRow(name, "", [step, step - 5, step + 12], 12, 2 * 600 / step if name == LIMIT else 600 / step,
                             0.9, 64e3 / step, 4 if "zb" in name else 1, {}, 1.2, 0.5, own))  # fmt: skip
    scaling = [{"K": K, "1f1b": 0.7 * K, "penalty": 0.9 * K, "zb": 0.8 * K} for K in (2, 3, 4, 6, 8)]
    start = {"launch": 2.4, "capture, measure, plan": 11.8, "first step": 0.5}
    return Bench(BenchRequest("resnet110", K=2), MACHINE, rows, start, scaling, others=0.01 if alone else 0.2)


def comparison(alone: bool = True) -> Comparison:
    rows = []
    for i, name in enumerate(("serial", *METHODS)):
        kinds = (("forward", i), ("backward", 14 + i), ("step", 27 + i))
        lane = [{"kind": kind, "batch": b, "begin": 40.0 * b + at, "end": 40.0 * b + at + 12, "name": kind}
                for b in (1, 2, 3) for kind, at in kinds]  # fmt: skip
        accuracy = [0.4 + 0.01 * i, 0.7, 0.85 + 0.002 * i, 0.9 + 0.003 * i]
        ranks = [{"tensors": 25 * MB, "idle": 0.1, "lost": 0.0 if alone else 0.3}] * (1 if name == "serial" else 2)
        marks = {} if name == "serial" else {n: ["✓" if (i + k) % 3 else "×", "as it is"] for k, n in enumerate(NAMES)}
        seconds, rho = [2.0, 1.4, 1.3 + 0.02 * i, 1.3], [1.5, 1.4, 1.6]
        rows.append(MethodRow(name, "", seconds, accuracy, 0.93, 1100.0 + 30 * i, rho, None, MB, 0, 1, ranks, marks,
                              [lane] * len(ranks)))  # fmt: skip
    rows.append(MethodRow("penalty-stored", "cannot: no room"))
    return Comparison(CompareRequest("resnet20", epochs=4), MACHINE, rows[0], 0.95, rows[1:])


def bench_text(alone: bool = True) -> str:
    return bench_page.page(bench(alone))


def compare_text(alone: bool = True) -> str:
    return compare_page.page(comparison(alone))
