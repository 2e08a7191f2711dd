"""Many runs, some at a time, each in a process on one core; what is done is kept and not done again."""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from lpcompile.study import records
from lpcompile.study.config import RunSpec
from lpcompile.study.train_run import train_run

Runner = Callable[[RunSpec, str, Path], dict[str, Any]]  # a module's function: processes import it
MAX_DEATHS = 2  # of processes that had a run, before it counts as failed


def run_all(
    specs: Sequence[RunSpec], data: str, folder: Path, jobs: int, run: Runner = train_run
) -> list[dict[str, Any]]:
    """The records of these runs, in their order; those that are not there yet are run first, each by `run`."""
    file = folder / records.RUNS
    known = records.results(folder)
    waiting = [spec for spec in {s.key: s for s in specs}.values() if spec.key not in known]
    progress = Progress(specs, known, jobs)
    about = records.provenance()
    deaths: dict[str, int] = {}
    while waiting:
        died = _until_a_death(waiting, data, folder, jobs, file, known, about, progress, run)
        waiting = [spec for spec in waiting if spec.key not in known]
        for spec in died:
            deaths[spec.key] = deaths.get(spec.key, 0) + 1
            if deaths[spec.key] >= MAX_DEATHS:  # not kept: the next study tries it again
                why = f"its process was ended {MAX_DEATHS} times (out of memory?)"
                known[spec.key] = {"key": spec.key, "run": spec.to_json(), "error": why, "said": []}
                progress.tell(spec, known[spec.key])
        waiting = [spec for spec in waiting if spec.key not in known]
    return [known[spec.key] for spec in specs]


def _until_a_death(
    waiting: Sequence[RunSpec], data: str, folder: Path, jobs: int, file: Path, known: dict[str, dict[str, Any]],
    about: dict[str, Any], progress: Progress, run: Runner,
) -> list[RunSpec]:  # fmt: skip
    """Run until all is done; gives the runs that were under way when a process died."""
    pool = ProcessPoolExecutor(jobs, _context(run.__module__), initializer=_end_with_parent)
    left, running = list(waiting), dict[Future[dict[str, Any]], RunSpec]()
    try:
        while left or running:
            while left and len(running) < jobs:
                spec = left.pop(0)
                running[pool.submit(run, spec, data, folder)] = spec
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                spec = running[done]
                record = {"key": spec.key, "run": spec.to_json(), **about, **done.result()}
                del running[done]
                records.append(file, record)
                known[spec.key] = record
                progress.tell(spec, record)
    except BrokenProcessPool:
        return list(running.values())
    except ConnectionRefusedError:  # the fork server died: the next pool starts another
        return [*running.values(), spec]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list((pool._processes or {}).values()):
            process.kill()
    return []


def _context(preload: str) -> Any:
    """Processes that are forked from a server, which imports torch once for all of them."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload])
    return context


def _end_with_parent() -> None:
    """A worker ends when the study does, however that ends."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the study, which ends this process
    threading.Thread(target=watch, daemon=True).start()


class Progress:
    """A line for each finished run, with an estimate of the time that is left."""

    def __init__(self, specs: Sequence[RunSpec], known: dict[str, dict[str, Any]], jobs: int) -> None:
        self.specs, self.known, self.jobs = {s.key: s for s in specs}, known, jobs
        done = sum(key in known for key in self.specs)
        print(f"{len(self.specs)} runs, {done} of them done before", file=sys.stderr, flush=True)

    def tell(self, spec: RunSpec, record: dict[str, Any]) -> None:
        done = sum(key in self.known for key in self.specs)
        accuracy = f"{record['accuracy']:.2f} %" if "accuracy" in record else record["error"].splitlines()[0]
        left = self.left()
        after = f"; about {duration(left)} left" if done < len(self.specs) else ""
        seconds = f" ({record['seconds']:.0f} s)" if "seconds" in record else ""
        print(f"[{done}/{len(self.specs)}] {spec}: {accuracy}{seconds}{after}", file=sys.stderr, flush=True)

    def left(self) -> float:
        """Seconds, from finished runs: of the same model and method, of the model, or, by their steps, of any."""
        each: list[tuple[RunSpec, float]] = [
            (RunSpec.from_json(r["run"]), r["seconds"])
            for r in self.known.values()
            if "accuracy" in r and "seconds" in r
        ]

        def expected(spec: RunSpec) -> float:
            model = [(s, t / s.steps) for s, t in each if s.network == spec.network and s.size == spec.size]
            same = [t for s, t in model if s.entry == spec.entry and s.K == spec.K]
            rates = same or [t for _, t in model] or [t / s.steps for s, t in each] or [0.0]
            return spec.steps * statistics.mean(rates)

        return sum(expected(spec) for key, spec in self.specs.items() if key not in self.known) / self.jobs


def duration(seconds: float) -> str:
    """Two units are enough."""
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
