"""From the clocks of all ranks to a row's figures: step times, parts of a step, ρ."""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from lpcompile.bench.contenders.ways import LIMIT, PLAIN, THREADS
from lpcompile.bench.request import BenchRequest
from lpcompile.bench.results import Bench, BenchRow


def step_times(name: str, answers: list[dict[str, Any]]) -> list[float]:
    """ms of each step: from the time when all ranks have ended one to the time when all have ended the next."""
    ends = [a["ends"] for a in answers]
    if name == LIMIT:  # independent trainings
        return [1e3 * (b - a) for one in ends for a, b in pairwise(one)]
    last = [max(at) for at in zip(*ends, strict=True)]
    return [1e3 * (b - a) for a, b in pairwise(last)]


def measure(row: BenchRow, blocks: list[list[dict[str, Any]]], request: BenchRequest) -> None:
    """Fill in a row from the answers of its ranks, block by block."""
    samples = [s for answers in blocks for s in step_times(row.name, answers)]
    if not samples:
        return
    low, _, high = statistics.quantiles(samples, n=4) if len(samples) > 1 else [samples[0]] * 3
    row.step = [statistics.median(samples), low, high]
    row.steps = sum(len(answers[0]["ends"]) - 1 for answers in blocks)
    trained = request.batch * (request.K if row.name == LIMIT else 1)
    row.rate = 1e3 * trained / row.step[0]
    row.ranks = [_rank([answers[r] for answers in blocks], row.name) for r in range(len(blocks[0]))]


def _rank(answers: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Figures of one rank over all blocks. The parts add up to its wall time."""
    count = sum(len(a["ends"]) - 1 for a in answers)
    wall = sum(a["ends"][-1] - a["ends"][0] for a in answers)
    thread = sum(a["thread"] for a in answers)
    cpu = thread if name == THREADS else sum(a["cpu"] for a in answers)
    parts: dict[str, float] = {}
    for a in answers:
        for part, seconds in a["spent"].items():
            parts[part] = parts.get(part, 0.0) + seconds
    parts["python"] = parts.get("python", 0.0) + max(0.0, thread - sum(parts.values()))
    parts["transfer"] = parts.get("transfer", 0.0) + max(0.0, cpu - thread)
    parts["wait"] = max(0.0, wall - cpu)
    return {
        "peak": max(a["peak"] for a in answers),
        "idle": parts["wait"] / wall,
        "sent": round(statistics.median(a["sent"] for a in answers)),
        "parts": {part: 1e3 * seconds / count for part, seconds in parts.items()},
    }


def add_speedups(found: Bench) -> None:
    """ρ against plain training, and its share of the measured limit."""
    plain, limit = found.row(PLAIN), found.row(LIMIT)
    if plain is None:
        return
    for row in found.rows:
        if row.step:
            row.rho = plain.step[0] / row.step[0] * (found.request.K if row.name == LIMIT else 1)
    for row in found.rows:
        if row.rho is not None and limit is not None and limit.rho is not None:
            row.of_limit = row.rho / limit.rho
