"""Gates: ratios that a bench must reach, read from a file:

    {"version": 1, "models": {"resnet110": [
        {"contender": "penalty", "value": "rho", "over": "limit", "least": 0.93},
        {"contender": "penalty", "value": "rho", "over": "torch", "least": 1.2},
        {"contender": "penalty", "value": "memory", "over": "plain", "most": 0.65},
        {"contender": "stream", "value": "rho", "over": "ddp", "least": 2.5, "rate": "1gbit"},
        {"contender": "stream", "value": "rho", "over": "itself", "least": 0.97, "rate": "1gbit"}]}}

`over` is another contender of the same run, or "torch": the best of torch's pipelines. Both sides are always measured.
A rule with a `rate` is of links: it holds over hosts that are apart (`--hosts`), where no other rule does. "itself" is
the same contender over a link without a limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lpcompile.bench.contenders.ways import PLAIN, TORCH, exists
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.core.system.json_file import read_json
from lpcompile.draw.markdown import markdown
from lpcompile.errors import UsageError
from lpcompile.runtime.launch.hosts import bits_per_s

VERSION = 1
VALUES = ("rho", "memory")
KEYS = {"contender", "value", "over", "least", "most", "rate"}
BEST_OF_TORCH, ITSELF = "torch", "itself"


@dataclass(frozen=True)
class Rule:
    """A bound on a contender's value over another one's: at least, or at most, this. rate: over links of this rate."""

    contender: str
    value: str
    over: str
    least: float | None = None
    most: float | None = None
    rate: str = ""

    def __str__(self) -> str:
        bound = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        other = "itself without a limit" if self.over == ITSELF else self.over
        return f"{self.value} of {self.contender} over {other}{f', {self.rate},' * bool(self.rate)} {bound}"


@dataclass(frozen=True)
class Judged:
    rule: Rule
    found: float | None  # None: one of the two was not measured
    holds: bool


def load(file: Path, model: str, rates: Sequence[str] = ()) -> tuple[Rule, ...]:
    """The rules for a model: those over links of these rates, or, without any, those on one host. Errors name the place
    in the file."""
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
    every = [_rule(rule, f"--gate {file}: rule {i} for {model}") for i, rule in enumerate(rules, start=1)]
    found = tuple(rule for rule in every if (rule.rate in rates if rates else not rule.rate))
    if not found:
        where = f"over links of {', '.join(rates)}" if rates else "on one host; give --hosts 2 for those over links"
        raise UsageError(f"--gate {file} has no rules for {model} {where}")
    return found


def _rule(given: Any, where: str) -> Rule:
    if not isinstance(given, dict) or not set(given) <= KEYS or not {"contender", "value", "over"} <= set(given):
        raise UsageError(f"{where}: expected contender, value, over, and least or most, and nothing else")
    names = (given["contender"], given["over"])
    if not all(isinstance(n, str) for n in names) or not exists(names[0]):
        raise UsageError(f"{where}: {names[0]!r} over {names[1]!r} are not both contenders")
    if names[1] not in (BEST_OF_TORCH, ITSELF) and not exists(names[1]):
        raise UsageError(f"{where}: {names[0]!r} over {names[1]!r} are not both contenders")
    if "rate" in given:
        try:
            bits_per_s(str(given["rate"]))
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    elif names[1] == ITSELF:
        raise UsageError(f"{where}: {ITSELF!r} is the contender without a limit; give the rate of a link")
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
        one, other = _sides(found, rule)
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


def _sides(found: Bench, rule: Rule) -> tuple[BenchRow | None, BenchRow | None]:
    """The two rows that a rule compares."""
    place = next((one for one in found.links if one.rate == rule.rate), None) if rule.rate else found
    if place is None:
        return None, None
    if rule.over in (ITSELF, PLAIN):  # plain training is on no link
        return place.row(rule.contender), found.row(PLAIN if rule.over == PLAIN else rule.contender)
    if rule.over != BEST_OF_TORCH:
        return place.row(rule.contender), place.row(rule.over)
    rows = [row for row in map(place.row, TORCH) if row is not None]
    return place.row(rule.contender), max(rows, key=lambda row: row.rho or 0.0, default=None)


def _ratio(one: BenchRow, other: BenchRow, value: str) -> float | None:
    if value == "memory":
        return one.peak / other.peak if other.peak else None
    return one.rho / other.rho if one.rho is not None and other.rho else None


def needed(rules: tuple[Rule, ...]) -> tuple[str, ...]:
    """The contenders that the rules name."""
    names = [n for rule in rules for n in (rule.contender, rule.over) if n != ITSELF]
    return tuple(dict.fromkeys(n for name in names for n in (tuple(TORCH) if name == BEST_OF_TORCH else (name,))))


def gate_text(judged: list[Judged]) -> str:
    rows = [
        [str(j.rule), "not measured" if j.found is None else f"{j.found:.3f}", "holds" if j.holds else "FAILS"]
        for j in judged
    ]
    missed = sum(not j.holds for j in judged)
    end = f"{missed} of {len(judged)} ratios are not reached" if missed else f"all {len(judged)} ratios are reached"
    return f"{markdown(['ratio', 'measured', ''], rows)}\n\n{end}"
