"""Benches with given speedups, without any process."""

from __future__ import annotations

from lpcompile.bench.contenders.ways import LIMIT, PLAIN, THREADS
from lpcompile.bench.request import BenchRequest
from lpcompile.bench.results import Bench, BenchRow, LinkResults

MACHINE = {"date": "2026-01-02", "torch": "2.15", "cores": 2}
PARTS = {"forward", "backward", "aux", "optimizer", "transfer", "python", "wait"}


def small_bench(**rhos):
    """Rows with these speedups; the limit is 1.9."""
    found = Bench(BenchRequest("resnet20", contenders=tuple(rhos)), MACHINE)
    for name, rho in {PLAIN: 1.0, LIMIT: 1.9, **rhos}.items():
        count = 1 if name in (PLAIN, THREADS) else 2
        ranks = [
            {"peak": int(2**20 * 100 / rho), "idle": 0.1, "sent": 1024, "parts": dict.fromkeys(PARTS, 1.5)}
        ] * count
        step = [100 / rho, 90 / rho, 110 / rho]
        found.rows.append(BenchRow(name, step=step, steps=20, rho=rho, of_limit=rho / 1.9, rate=5.0, ranks=ranks))
    return found


def over_a_link() -> Bench:
    """DDP takes 2 s and stream 100 ms over a link of 25 Mb/s."""
    found = small_bench(ddp=1.8, stream=1.9)
    found.request = BenchRequest("resnet20", contenders=("ddp", "stream"), hosts=2, rate=("25mbit",))
    free = {row.name: row for row in found.rows}
    rows = [
        BenchRow(name, step=[ms, ms, ms], steps=3, rho=100 / ms, ranks=free[name].ranks)
        for name, ms in (("ddp", 2000.0), ("stream", 100.0))
    ]
    rows.append(BenchRow("fsdp", why="cannot: out of <luck>"))
    found.links = [LinkResults("25mbit", 0.003, 120.0, rows, {"stream": 95.0}, ["stream"])]
    return found
