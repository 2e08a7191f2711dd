"""All runs of some tables, by the study's loop, and their results."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import torch

from lpcompile.errors import UsageError
from lpcompile.paper.experiments import ABLATION, Experiments, TableRow
from lpcompile.paper.printed import BY_KEY
from lpcompile.paper.results import Result, results
from lpcompile.paper.scales import SCALES, Scale
from lpcompile.paper.speeds import time_all
from lpcompile.paper.train_run import train_run
from lpcompile.study import records
from lpcompile.study.config import RunSpec
from lpcompile.study.data import data_name, decode, image_count
from lpcompile.study.pool import run_all

CLASSES = 1000  # the networks have as many outputs as the data have classes


def run_tables(experiments: Experiments, keys: Sequence[str], folder: Path, jobs: int = 1, times: bool = False) -> None:
    """Run what is not in the folder yet: of all tables the first seed, then the next."""
    rows: dict[str, list[TableRow]] = {}
    for key in keys:
        rows.setdefault(experiments.of(key).data, []).extend(row for row in experiments.rows(key) if row.runs)
    check_device(experiments.device, [row.runs[0].K for some in rows.values() for row in some])
    with records.locked(folder):
        for data, some in rows.items():
            if times:
                time_all([row.runs[0] for row in some], folder)
                continue
            decode(folder, data, experiments.scale.size, CLASSES)
            check_images(folder, data, experiments.scale)
            run_all(in_order(some), data, folder, jobs, run=train_run)


def check_device(device: str, stages: Sequence[int]) -> None:
    """Refuse a device that some rows cannot run on: each would be recorded as failed."""
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device} is neither cpu nor cuda")
    have, need = torch.cuda.device_count(), max(stages, default=1)
    if device == "cuda" and have < need:
        raise UsageError(
            f"--device cuda: these tables have rows of {need} stages, with a GPU each, and this machine has {have}; "
            f"leave it out, or name tables of fewer stages"
        )


def check_images(folder: Path, data: str, scale: Scale) -> None:
    """Refuse data with fewer images than the scale says: epochs would be shorter than the tables tell."""
    have = image_count(folder, data, scale.size)
    if have < scale.images:
        others = [s.name for s in SCALES.values() if s.images <= have]
        instead = f"; take --scale {others[-1]}, or other data" if others else "; give other data"
        raise UsageError(
            f"--data {data} has {have} training images, and --scale {scale.name} takes {scale.images}{instead}"
        )


def in_order(rows: Sequence[TableRow]) -> list[RunSpec]:
    """Each run once; second seeds come after all first ones."""
    by_seed = itertools.zip_longest(*(row.runs for row in rows))
    return list({run.key: run for runs in by_seed for run in runs if run is not None}.values())


def tables_of(experiments: Experiments, keys: Sequence[str], folder: Path) -> dict[str, list[Result]]:
    """The tables in the order of the paper."""
    found = records.results(folder)
    times = {t["key"]: t for t in records.read(folder / records.TIMES)}
    return {key: results(key, experiments.rows(key), found, times) for key in (*BY_KEY, ABLATION) if key in keys}


def about(experiments: Experiments, keys: Sequence[str], folder: Path) -> str:
    """Where the numbers of these tables come from."""
    scale, known = experiments.scale, records.results(folder)
    wanted = in_order([row for key in keys for row in experiments.rows(key)])
    found = [known[run.key] for run in wanted if run.key in known]

    def of(name: str) -> str:
        return ", ".join(sorted({str(r.get(name, "unknown")) for r in found})) or "–"

    hours = sum(r.get("cpu_seconds", 0.0) for r in found) / 3600
    return (
        f"Scale {scale.name}: {scale.images} images of {scale.size} px from {data_name(experiments.data)}, "
        f"{_many(scale.epochs, 'epoch')}, batches of {scale.batch}, SGD with a cosine from {scale.lr:g}, "
        f"{_many(scale.seeds, 'seed')}, "
        f"final accuracy on {scale.evaluated} test images. {len(found)} of {len(wanted)} runs, {hours:.1f} core hours; "
        f"commit {of('commit')}; {of('machine')}; torch {of('torch')}; {of('date')}."
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
