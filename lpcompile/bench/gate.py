"""Gates: ratios that a bench must reach, read from a file:

    {"version": 1, "models": {"resnet110": [
        {"contender": "penalty", "value": "rho", "over": "limit", "least": 0.93},
        {"contender": "penalty", "value": "rho", "over": "torch", "least": 1.2},
        {"contender": "penalty", "value": "memory", "over": "plain", "most": 0.65}]}}

`over` is another contender of the same run, or "torch": the best of torch's pipelines. Both sides are always measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpcompile.bench.contenders.ways import CONTENDERS, TORCH
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.core.system.json_file import read_json
from lpcompile.draw.markdown import markdown
from lpcompile.errors import UsageError

VERSION = 1
VALUES = ("rho", "memory")
KEYS = {"contender", "value", "over", "least", "most"}


@dataclass(frozen=True)
class Rule:
    """A bound on a contender's value over another one's: at least, or at most, this."""

    contender: str
    value: str
    over: str
    least: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        bound = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        return f"{self.value} of {self.contender} over {self.over} {bound}"


@dataclass(frozen=True)
class Judged:
    rule: Rule
    found: float | None  # None: one of the two was not measured
    holds: bool


def load(file: Path, model: str) -> tuple[Rule, ...]:
    """The rules for a model. Errors name the place in the file."""
    data = read_json(file, f"--gate {file}")
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("models"), dict):
        raise UsageError(f'--gate {file}: expected {{"version": {VERSION}, "models": {{NAME: [rules]}}}}')
    if model not in data["models"]:
        raise UsageError(
            f"--gate {file} has no rules for {model}; it has some for {', '.join(data['models']) or 'none'}"
        )
    rules = data["models"][model]
    if not isinstance(rules, list) or not rules:
        raise UsageError(f"--gate {file}: the rules for {model} are no list, or an empty one")
    return tuple(_rule(rule, f"--gate {file}: rule {i} for {model}") for i, rule in enumerate(rules, start=1))


def _rule(given: Any, where: str) -> Rule:
    if not isinstance(given, dict) or not set(given) <= KEYS or not {"contender", "value", "over"} <= set(given):
        raise UsageError(f"{where}: expected contender, value, over, and least or most, and nothing else")
    if given["contender"] not in CONTENDERS or given["over"] not in (*CONTENDERS, "torch"):
        raise UsageError(f"{where}: {given['contender']!r} over {given['over']!r} are not both contenders")
    if given["value"] not in VALUES:
        raise UsageError(f"{where}: value {given['value']!r} is not one of {', '.join(VALUES)}")
    bounds = [given.get("least"), given.get("most")]
    if sum(b is not None for b in bounds) != 1 or not all(_is_number(b) for b in bounds if b is not None):
        raise UsageError(f"{where}: give one number, least or most")
    return Rule(**given)


def _is_number(given: Any) -> bool:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and math.isfinite(given)


def judge(found: Bench, rules: tuple[Rule, ...]) -> list[Judged]:
    """Check all rules. A ratio that could not be measured does not hold."""
    judged = []
    for rule in rules:
        one, other = found.row(rule.contender), _other(found, rule.over)
        if one is None or other is None:
            judged.append(Judged(rule, None, False))
            continue
        value = _ratio(one, other, rule.value)
        if value is None:
            judged.append(Judged(rule, None, False))
            continue
        holds = value >= rule.least if rule.least is not None else value <= (rule.most or 0.0)
        judged.append(Judged(rule, value, holds))
    return judged


def _other(found: Bench, name: str) -> BenchRow | None:
    if name != "torch":
        return found.row(name)
    rows = [row for row in (found.row(t) for t in TORCH) if row is not None]
    return max(rows, key=lambda row: row.rho or 0.0, default=None)


def _ratio(one: BenchRow, other: BenchRow, value: str) -> float | None:
    if value == "memory":
        return one.peak / other.peak if other.peak else None
    return one.rho / other.rho if one.rho is not None and other.rho else None


def needed(rules: tuple[Rule, ...]) -> tuple[str, ...]:
    """The contenders that the rules name."""
    names = [n for rule in rules for n in (rule.contender, rule.over)]
    return tuple(dict.fromkeys(n for name in names for n in (tuple(TORCH) if name == "torch" else (name,))))


def gate_text(judged: list[Judged]) -> str:
    rows = [
        [str(j.rule), "not measured" if j.found is None else f"{j.found:.3f}", "holds" if j.holds else "FAILS"]
        for j in judged
    ]
    missed = sum(not j.holds for j in judged)
    end = f"{missed} of {len(judged)} ratios are not reached" if missed else f"all {len(judged)} ratios are reached"
    return f"{markdown(['ratio', 'measured', ''], rows)}\n\n{end}"
