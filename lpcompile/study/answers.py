"""Which method to take for a K: each method's cost and accuracy over all models of a study, and the best for a need."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from lpcompile.draw.markdown import NO_VALUE, markdown
from lpcompile.errors import UsageError
from lpcompile.runtime.methods import METHODS
from lpcompile.runtime.methods.recipe import main_phase, recipe_of
from lpcompile.study.config import DDP, PLAIN
from lpcompile.study.summary import StudyRow, plus_minus

DEFAULT = "auto"
EXACT_PIPELINE = "gpipe"  # the memory of other methods is shown as a part of its
NEAR, FAR = 0.5, 2.0  # points below plain training
HEADERS = ["K", "what matters", "take", "points over plain", "worst model", "ρ", "memory"]
NOTES = [
    "points over plain: test accuracy above plain training of the same seed, mean over all models, ± the standard "
    "deviation over seeds; worst model: its mean over seeds.",
    f"ρ: speedup over plain training, mean over models; memory: largest rank, as a part of `{EXACT_PIPELINE}`'s.",
]


@dataclass(frozen=True)
class Merged:
    """A method at one K over all models that have it, by the seeds that all of them have."""

    entry: str
    method: str
    gaps: Mapping[int, float]  # by seed: points over plain, mean over models
    by_model: Mapping[str, float]
    rho: float
    memory: float  # bytes
    relative: float | None  # memory over the exact pipeline's
    asked: int  # seeds of the method that has most
    stopped: int  # runs without an accuracy

    @property
    def gap(self) -> float:
        return statistics.mean(self.gaps.values())

    @property
    def no_wait(self) -> bool:
        """No rank waits for one above: a slow link costs nothing."""
        kind = METHODS[main_phase(recipe_of(self.method)).method]
        return kind.heads or bool(kind.aux)

    @property
    def caveat(self) -> str:
        """What the mean is not of."""
        fewer = f"{len(self.gaps)} of {self.asked} seeds" if len(self.gaps) < self.asked else ""
        stopped = f"{self.stopped} runs stopped" if self.stopped else ""
        return ", ".join(filter(None, (fewer, stopped)))

    def cells(self) -> list[str]:
        caveat, worst = f" ({self.caveat})" if self.caveat else "", min(self.by_model, key=lambda m: self.by_model[m])
        memory = NO_VALUE if self.relative is None else f"{self.relative:.2f}"
        points = plus_minus(list(self.gaps.values()), "+.1f")
        return [self.entry, f"{points}{caveat}", f"{worst} {self.by_model[worst]:+.1f}", f"{self.rho:.2f}", memory]


def over_models(rows: Sequence[StudyRow]) -> list[Merged]:
    """The methods that have, at one K, an accuracy beside plain training on every model: means are of the same."""
    models = {row.model for row in rows}
    pipeline = {row.model: row.memory for row in rows if row.entry == EXACT_PIPELINE and row.memory}
    found: list[Merged] = []
    for entry in dict.fromkeys(row.entry for row in rows):
        every = [row for row in rows if row.entry == entry]
        mine = [row for row in every if row.gaps and row.rho is not None]
        seeds = set.intersection(*(set(row.gaps) for row in mine)) if mine else set()
        if {row.model for row in mine} != models or not seeds:
            continue
        found.append(
            Merged(
                entry,
                mine[0].method,
                {seed: statistics.mean(row.gaps[seed] for row in mine) for seed in sorted(seeds)},
                {row.model: statistics.mean(row.gaps[seed] for seed in seeds) for row in mine},
                statistics.mean(row.rho or 0.0 for row in mine),
                statistics.mean(row.memory or 0 for row in mine),
                statistics.mean((row.memory or 0) / pipeline[row.model] for row in mine)
                if set(pipeline) == models and all(row.memory for row in mine)
                else None,
                0,
                sum(row.failed for row in every),
            )
        )
    return [replace(one, asked=max(len(m.gaps) for m in found)) for one in found]


def at(rows: Sequence[StudyRow], K: int) -> list[StudyRow]:
    """What is compared with plain training at a K."""
    return [row for row in rows if row.K == K and not row.plain]


def stages(rows: Sequence[StudyRow]) -> list[int]:
    return sorted({row.K for row in rows if not row.plain})


def not_everywhere(rows: Sequence[StudyRow]) -> list[str]:
    """Methods without an accuracy on some model, which means over models leave out."""
    found = []
    for K in stages(rows):
        of = at(rows, K)
        merged = {one.entry for one in over_models(of)}
        left = [entry for entry in dict.fromkeys(row.entry for row in of) if entry not in merged]
        if left:
            found.append(f"K = {K}, not on every model with the same seeds, so not judged: {', '.join(left)}.")
    return found


def seeds_told(rows: Sequence[StudyRow]) -> list[str]:
    """How many seeds the means are of."""
    counts = {K: merged[0].asked for K in stages(rows) if (merged := over_models(at(rows, K)))}
    return [f"seeds: {', '.join(f'{count} at K = {K}' for K, count in counts.items())}; fewer are told."]


def answers(rows: Sequence[StudyRow]) -> list[list[str]]:
    """For every K: what one gets by default, and what to take if accuracy, speed, memory or links matter most."""
    found = []
    for K in stages(rows):
        merged = [one for one in over_models(at(rows, K)) if one.method not in (PLAIN, DDP)]
        near, far = ([one for one in merged if one.gap >= -points] for points in (NEAR, FAR))
        needs: list[tuple[str, list[Merged], Callable[[Merged], float]]] = [
            ("nothing: the default", [m for m in merged if m.entry == DEFAULT], lambda m: 0.0),
            (f"accuracy (within {NEAR:g} of plain), then speed", near, lambda m: -m.rho),
            (f"speed, up to {FAR:g} points", far, lambda m: -m.rho),
            (f"memory, up to {FAR:g} points", far, lambda m: m.memory),
            ("a slow link: no rank waits for one above", [m for m in merged if m.no_wait], lambda m: -m.gap),
        ]
        found += [[str(K), what, *min(choice, key=best).cells()] for what, choice, best in needs if choice]
    return found


def answer_text(rows: Sequence[StudyRow]) -> str:
    found = answers(rows)
    if not found:
        raise UsageError(
            "no method has an accuracy beside plain training yet; run the study with plain among its methods"
        )
    notes = [*NOTES, *seeds_told(rows), *not_everywhere(rows)]
    return "\n\n".join([markdown(HEADERS, found), "\n".join(f"- {note}" for note in notes)])
