"""Random signals to random processes of training runs, at random instructions; then the run is resumed and compared.

    python -m tests.faults --kills 200 --seed 0

A trial is one run with one signal. Local runs come from one fork server that the campaign keeps, unless the server is
the victim; so a trial takes seconds.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.launch.launch import launch
from lpcompile.runtime.methods import METHODS
from tests.faults import job
from tests.faults.job import Work
from tests.runtime.ranks import free_port

ROOT = Path(__file__).parents[2]
UNREPEATABLE = ("dgl-async",)  # the result depends on timing
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGSTOP")
VICTIMS = {"local": ("rank", "rank", "rank", "launcher", "server"), "torchrun": ("rank", "rank", "launcher")}
SLACK = 20.0  # seconds beyond the time-out that a job may take to end: grace periods, torchrun's own, a busy machine
START = 1800.0  # seconds in which a run reaches its signal, also on a busy machine


@dataclass
class Trial:
    """One run with one signal, and what came of it. None: does not apply."""

    number: int
    where: str
    work: Work
    fired: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0  # from the signal to the end of the launcher
    hung: bool = False
    orphans: int = 0
    damaged: int = 0
    same: bool | None = None
    blamed: bool | None = None
    error: str = ""

    def __str__(self) -> str:
        w = self.work
        at = f"{self.fired.get('text', 'nothing sent')!r} in step {self.fired.get('step')}"
        found = [("hung", self.hung), (f"{self.orphans} orphans", self.orphans), ("damaged", self.damaged)]
        found += [("DIFFERENT", self.same is False), ("WRONG BLAME", self.blamed is False)]
        says = ", ".join(text for text, is_so in found if is_so) or "fine"
        who = f"{w.victim} {w.rank}" if w.victim == "rank" else w.victim
        return (
            f"{self.number:3d} {self.where:8s} {w.method:14s} K={w.K} {w.signal:7s} to {who:8s} at {at}: {says} "
            f"({self.seconds:.1f} s)"
        )


# DualPipe-V would cut a batch into 2K parts of one sample, too few for BatchNorm
KILLED = [name for name in METHODS if name != "dualpipev"]


class Campaign:
    """The trials of one seed. `references`: weights and notes of runs that nothing happened to."""

    def __init__(self, folder: Path, seed: int, timeout: float) -> None:
        self.folder, self.random, self.timeout = folder, random.Random(seed), timeout
        self.references: dict[tuple[str, int], tuple[dict[str, torch.Tensor], list[int]]] = {}

    def draw(self, number: int, where: str) -> Trial:
        """A trial at random; all randomness is drawn here, so that a seed gives the same trials."""
        pick = self.random
        K, method = pick.choice((2, 3)), pick.choice(KILLED)
        victim, sig, rank, share = pick.choice(VICTIMS[where]), pick.choice(SIGNALS), pick.randrange(K), pick.random()
        notes = self.reference(method, K)[1][rank]
        note = 1 + int(share * (notes - 2))
        folder = self.folder / f"trial{number}"
        (folder / "saved").mkdir(parents=True)
        return Trial(number, where, Work(method, K, str(folder), self.timeout, False, rank, note, victim, sig))

    def reference(self, method: str, K: int) -> tuple[dict[str, torch.Tensor], list[int]]:
        if (method, K) not in self.references:
            folder = self.folder / f"whole-{method}-{K}"
            folder.mkdir()
            notes = launch(_counted, (Work(method, K, str(folder), 60.0),), world=K)
            self.references[method, K] = load_file(folder / job.RESULT), notes
        return self.references[method, K]

    def run(self, trial: Trial) -> Trial:
        """Start the run, wait for its end, look at what it left, and resume it."""
        folder = Path(trial.work.folder)
        self.reference(trial.work.method, trial.work.K)  # which starts the fork server, where it is the first launch
        start = _torchrun if trial.where == "torchrun" else _local
        with open(folder / "output", "w") as output:
            process = start(trial.work, output)
        self._wait(trial, process)
        output_text = (folder / "output").read_text()
        trial.orphans = _orphans(folder)
        trial.blamed = blamed(trial, output_text)
        trial.damaged = sum(not _whole(p) for p in (folder / "saved").glob("step-*"))
        self._resume(trial)
        return trial

    def _wait(self, trial: Trial, process: Any) -> None:
        folder, begin = Path(trial.work.folder), time.time()
        while _alive(process) and time.time() < begin + START:
            time.sleep(0.05)
            if not trial.fired and (folder / "fired").exists():
                trial.fired = json.loads((folder / "fired").read_text())
            if trial.fired and self._too_late(trial, process):
                break
        trial.fired = trial.fired or (json.loads((folder / "fired").read_text()) if (folder / "fired").exists() else {})
        trial.hung = _alive(process)
        trial.seconds = time.time() - trial.fired.get("time", begin)
        _continue(trial, process)
        if trial.hung:
            _end(process, folder)
        process.wait(timeout=START) if isinstance(process, subprocess.Popen) else process.join(timeout=START)

    def _too_late(self, trial: Trial, process: Any) -> bool:
        """After a signal the job must end within the time-out. What nobody can notice, a launcher that is stopped, goes
        on after a while; then, as after a signal that ranks ignore, training goes on to its end."""
        since = time.time() - trial.fired["time"]
        if trial.work.signal == "SIGSTOP" and trial.work.victim != "rank" and since > 2:
            _continue(trial, process)
        goes_on = trial.work.signal == "SIGINT" or (trial.work.signal == "SIGSTOP" and trial.work.victim != "rank")
        return since > (START if goes_on else self.timeout + SLACK)

    def _resume(self, trial: Trial) -> None:
        w, folder = trial.work, Path(trial.work.folder)
        (folder / job.RESULT).unlink(missing_ok=True)
        again = replace(w, victim="", resume=True, timeout=60.0)
        try:
            launch(job.work, (again,), world=w.K, K=w.K)
        except Exception as error:
            trial.error, trial.same = f"resume failed: {error}", False
            return
        if w.method not in UNREPEATABLE:
            found, wanted = load_file(folder / job.RESULT), self.reference(w.method, w.K)[0]
            trial.same = all(torch.equal(found[name], wanted[name]) for name in wanted)


def _counted(spec: Work) -> list[int]:
    from lpcompile.runtime.comm import exchange

    return exchange.gathered(job.work(spec))


def _local(spec: Work, output: Any) -> Any:
    """A launcher, forked from this process. It has a fork server of its own where that is the victim."""
    process = multiprocessing.get_context("fork").Process(target=_launcher, args=(spec, output.fileno()))
    process.start()
    return process


def _launcher(spec: Work, output: int) -> None:
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)  # not a test runner's
    signal.signal(signal.SIGINT, signal.default_int_handler)
    Path(spec.folder, "launcher").write_text(str(os.getpid()))
    server: Any = forkserver._forkserver
    if spec.victim == "server":
        server._forkserver_address = server._forkserver_alive_fd = server._forkserver_pid = None
    else:
        server.ensure_running = lambda: None  # the campaign's, which this process must not look after
    try:
        launch(job.work, (spec,), world=spec.K, K=spec.K, timeout=spec.timeout)
    except BaseException as error:
        print(f"lpcompile: {error or type(error).__name__}", flush=True)
        os._exit(1)
    sys.stdout.flush()
    forkserver._forkserver._stop() if spec.victim == "server" else None
    os._exit(0)


def _torchrun(spec: Work, output: Any) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(spec.K), "--master-addr", "127.0.0.1",
        "--master-port", str(free_port()), "-m", "tests.faults.job", job.as_json(spec),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=output, stderr=output, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )  # fmt: skip
    Path(spec.folder, "launcher").write_text(str(process.pid))
    return process


def _alive(process: Any) -> bool:
    return bool(process.poll() is None) if isinstance(process, subprocess.Popen) else bool(process.is_alive())


def _continue(trial: Trial, process: Any) -> None:
    """Let a launcher or fork server go on that was stopped: nothing can end a job that its user has suspended."""
    if trial.work.signal == "SIGSTOP" and trial.work.victim != "rank":
        for pid in (process.pid, *(server for _, server in _pids(Path(trial.work.folder)))):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGCONT)


def _pids(folder: Path) -> list[tuple[int, int]]:
    """Each rank's process and its parent."""
    found = [tuple(map(int, p.read_text().split())) for p in folder.glob("pid*")]
    return [(pair[0], pair[1]) for pair in found if len(pair) == 2]


def _orphans(folder: Path) -> int:
    """Ranks that are still there a while after their launcher; they are ended."""
    deadline = time.time() + 5
    while (left := [pid for pid, _ in _pids(folder) if _exists(pid)]) and time.time() < deadline:
        time.sleep(0.1)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return len(left)


def _exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _end(process: Any, folder: Path) -> None:
    for pid in (process.pid, *(pid for pid, _ in _pids(folder))):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _whole(folder: Path) -> bool:
    try:
        checkpoint.describe(folder)
        return bool(checkpoint.model_state(folder))
    except Exception:
        return False


def blamed(trial: Trial, output: str) -> bool | None:
    """Whether the message names the victim first. None where there is nobody to name: the launcher was the victim, or
    the run went on."""
    w = trial.work
    if not trial.fired or w.victim == "launcher":
        return None
    if "training stopped" not in output and "Root Cause" not in output:
        return False if w.victim == "rank" and w.signal != "SIGINT" else None
    if w.victim == "server":
        return "fork server" in output
    ours = re.search(r"training stopped: rank (\d+) ", output)
    theirs = re.search(r"Root Cause.*?rank\s+: (\d+) ", output, re.DOTALL)
    found = ours or theirs
    return found is not None and int(found[1]) == w.rank


def table(trials: list[Trial]) -> str:
    """One line for each kind of run and signal, and the totals."""
    rows = []
    groups = sorted({(t.where, t.work.victim, t.work.signal) for t in trials})
    for key in [*groups, ("all", "", "")]:
        mine = [t for t in trials if key[0] == "all" or (t.where, t.work.victim, t.work.signal) == key]
        compared, named = [t for t in mine if t.same is not None], [t for t in mine if t.blamed is not None]
        rows.append(
            (" ".join(key).strip(), len(mine), sum(t.hung for t in mine), sum(t.orphans for t in mine),
             sum(t.damaged for t in mine), f"{sum(bool(t.same) for t in compared)} of {len(compared)}",
             f"{sum(bool(t.blamed) for t in named)} of {len(named)}", f"{max(t.seconds for t in mine):.1f}")
        )  # fmt: skip
    names = ("signal", "kills", "hangs", "orphans", "damaged", "bitwise resumes", "right blame", "longest end, s")
    widths = [max(len(str(row[i])) for row in (names, *rows)) for i in range(len(names))]
    return "\n".join("  ".join(str(v).ljust(w) for v, w in zip(row, widths, strict=True)) for row in (names, *rows))


def campaign(kills: int, seed: int, timeout: float, wheres: tuple[str, ...] = ("local", "torchrun")) -> list[Trial]:
    """Run the trials one after another, a third of them under torchrun, and print each."""
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    found = []
    try:
        made = Campaign(folder, seed, timeout)
        for number in range(kills):
            where = wheres[-1] if number % 3 == 2 else wheres[0]
            found.append(made.run(made.draw(number, where)))
            print(found[-1], flush=True)
            if found[-1].error:
                print(f"    {found[-1].error}", flush=True)
            if failed(found[-1]):
                print(_indented(Path(found[-1].work.folder, "output").read_text()), flush=True)
            shutil.rmtree(found[-1].work.folder, ignore_errors=True)
    except KeyboardInterrupt:
        print("stopped; the table is of the trials so far", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def failed(trial: Trial) -> bool:
    bad = not trial.fired or trial.hung or trial.orphans or trial.damaged
    return bool(bad or trial.same is False or trial.blamed is False)


def _indented(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"    | {line[:200]}" for line in lines[-25:])
