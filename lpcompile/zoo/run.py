"""`python -m lpcompile zoo`: every model of the zoo, checked, in worker processes that may die."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import queue
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lpcompile.core.tables import table
from lpcompile.zoo import find
from lpcompile.zoo.entry import ZooEntry, ZooRow

NOT_RUN = ("does not build", "not installed")


def run(
    entries: Sequence[ZooEntry], *, K: int = 4, jobs: int = 1, seconds: float = 240.0, peers: bool = True,
    emit: bool = False, output: Path | None = None,
) -> list[ZooRow]:  # fmt: skip
    """Check the entries, `jobs` at a time with one thread each; a model that takes longer than `seconds` is ended.

    With `output`, rows are appended to that file as JSON lines, and models already in it are not run again.
    """
    rows = _known(output)
    todo = [e.name for e in entries if e.name not in rows]
    context = mp.get_context("spawn")
    workers = [_Worker(context, i, K=K, peers=peers, emit=emit) for i in range(max(1, jobs))]
    done = len(entries) - len(todo)
    try:
        while todo or any(w.busy for w in workers):
            for worker in workers:
                if not worker.busy and todo:
                    worker.give(todo.pop(0))
                row = worker.poll(seconds)
                if row is not None:
                    rows[row["name"]] = row
                    done += 1
                    _progress(done, len(entries), row)
                    if output is not None:
                        with output.open("a") as file:
                            file.write(json.dumps(row) + "\n")
            time.sleep(0.05)
    finally:
        for worker in workers:
            worker.end()
    return [rows[e.name] for e in entries if e.name in rows]


class _Worker:
    """A process that checks one model after another; replaced when it dies or takes too long."""

    def __init__(self, context: Any, index: int, **options: Any) -> None:
        self.context, self.index, self.options = context, index, options
        self.process: Any = None
        self.name: str | None = None
        self.since = 0.0

    @property
    def busy(self) -> bool:
        return self.name is not None

    def give(self, name: str) -> None:
        if self.process is None:
            self.inbox, self.outbox = self.context.Queue(), self.context.Queue()
            arguments = (self.inbox, self.outbox, self.index, self.options)
            self.process = self.context.Process(target=_work, args=arguments, daemon=True)
            self.process.start()
        self.name, self.since = name, time.monotonic()
        self.inbox.put(name)

    def poll(self, seconds: float) -> ZooRow | None:
        if self.name is None:
            return None
        try:
            row: ZooRow = self.outbox.get_nowait()
        except queue.Empty:
            late = time.monotonic() - self.since > seconds
            if self.process.is_alive() and not late:
                return None
            why = f"no answer in {seconds:.0f} s" if late else f"the process ended with {self.process.exitcode}"
            row = {"name": self.name, "suite": self.name.split(":")[0], "status": "died", "why": why}
            self.end()
        self.name = None
        return row

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None


def _work(inbox: Any, outbox: Any, index: int, options: dict[str, Any]) -> None:
    from lpcompile.zoo.check import check

    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[index % len(cores)]})
    parent = os.getppid()
    while os.getppid() == parent:  # end with the command, however it ends
        try:
            name = inbox.get(timeout=5)
        except queue.Empty:
            continue
        outbox.put(check(find(name), **options))


def _known(output: Path | None) -> dict[str, ZooRow]:
    if output is None or not output.exists():
        return {}
    rows = [json.loads(line) for line in output.read_text().splitlines() if line.strip()]
    return {row["name"]: row for row in rows}


def _progress(done: int, total: int, row: ZooRow) -> None:
    why = f" ({row['why']})" if row.get("why") else ""
    print(f"[{done}/{total}] {row['name']}: {row['status']}{why}"[:200], file=sys.stderr, flush=True)


def report(rows: Sequence[ZooRow], K: int) -> str:
    """Coverage beside the peers, balance, and every model that is not exact with its reason."""
    ran = [r for r in rows if r["status"] not in NOT_RUN]
    suites = list(dict.fromkeys(r["suite"] for r in ran))
    lines = [[s, *_coverage([r for r in ran if r["suite"] == s], K)] for s in suites]
    lines.append(["all", *_coverage(ran, K)])
    headers = ["suite", "models", f"exact at K = {K}", "exact, fewer", "refused", "wrong", "max/mean < 1.25",
               "symbolic_trace", "pipelining.pipeline", "AuxNets right", "emitted exact"]  # fmt: skip
    text = [table(lines, headers), "", "exact: outputs, every gradient and every buffer of a training step and the "
            "outputs in evaluation are bitwise the model's.", "The peers are held to outputs and buffers of a training "
            "forward only."]  # fmt: skip
    misses = [r for r in rows if r["status"] not in ("exact", "not installed")]
    fewer = [r for r in ran if r["status"] == "exact" and r.get("K", K) < K]
    not_emitted = [r for r in ran if r.get("emit", "exact") != "exact"]
    absent = [r for r in rows if r["status"] == "not installed"]
    if absent:
        text += ["", f"Not installed ({len(absent)} models; pip install 'lpcompile[zoo]'):"]
        text += [f"  {why}" for why in dict.fromkeys(r["why"] for r in absent)]
    no_aux = [r for r in ran if r.get("aux", "right") != "right"]
    for title, group, key in (("Not exact:", misses, "why"), ("Fewer stages than asked:", fewer, "fewer"),
                              ("AuxNets that are not right:", no_aux, "aux"),
                              ("Not emitted:", not_emitted, "emit")):  # fmt: skip
        if group:
            text += ["", title, *(f"  {r['name']}: {r['status']}, {r.get(key, '')}" for r in group)]
    uneven = [r for r in ran if r.get("imbalance", 1.0) >= 1.25]
    if uneven:
        text += ["", "max/mean of 1.25 or more: " + ", ".join(f"{r['name']} {r['imbalance']:.2f}" for r in uneven)]
    return "\n".join(text)


def _coverage(rows: Sequence[ZooRow], K: int) -> list[str]:
    total = len(rows)

    def count(condition: Any) -> str:
        found = sum(bool(condition(r)) for r in rows)
        return f"{found} ({100 * found / total:.0f} %)" if total else "0"

    peers = any("pipeline" in r for r in rows)
    return [
        str(total),
        count(lambda r: r["status"] == "exact" and r["K"] == K),
        count(lambda r: r["status"] == "exact" and r["K"] < K),
        count(lambda r: r["status"] == "refused"),
        count(lambda r: r["status"] in ("wrong", "crashed", "died")),
        count(lambda r: r.get("imbalance", 9.0) < 1.25 and r.get("K") == K),
        count(lambda r: r.get("symbolic_trace") == "exact") if peers else "-",
        count(lambda r: str(r.get("pipeline", "")).startswith("exact")) if peers else "-",
        count(lambda r: r.get("aux") == "right") if any("aux" in r for r in rows) else "-",
        count(lambda r: r.get("emit") == "exact") if any("emit" in r for r in rows) else "-",
    ]
