"""A recipe: the phases of a run, each a method with options of its own, until a step, a violation or a loss.

>>> recipe_of("1f1b[micro=4]@0.3,stream[micro=4]@0.9,1f1b")         # the same as
>>> recipe_of([Phase("1f1b", {"micro": 4}, (End("share", 0.3),)),
...            Phase("stream", {"micro": 4}, (End("share", 0.9),)), Phase("1f1b")])

    RECIPE    PHASE@END,...,PHASE              the last phase runs to the end of training
    PHASE     METHOD, or METHOD[OPTION=VALUE,...] with options of `program.trainer`
    END       0.5               at this share of the steps of training
              500steps          at step 500
              +500steps         after 500 steps of the phase
              -500steps         when 500 steps of training are left
              violation<0.05    when λ is this near to X at every boundary (a mean over the last steps)
              loss<0.5          when the loss is this small (likewise)
              END|END           whichever comes first

A phase whose end has passed before it begins is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from lpcompile.errors import UsageError
from lpcompile.runtime.methods import get_method

COUNTS = {"step": "", "for": "+", "left": "-"}  # ends that are numbers of steps, by their sign
LEVELS = ("violation", "loss")  # ends that are seen in training
WHOLE_RUN = ("finish", "total_steps")  # options that belong to no single phase
WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
SYNTAX = "write METHOD[OPTION=VALUE]@END,METHOD with an END such as 0.5, 500steps, violation<0.05 or loss<0.5"

_PHASE = re.compile(r"(?P<method>[\w-]+)(?:\[(?P<options>[^][]*)])?(?:@(?P<until>[^][]+))?")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_STEPS = re.compile(r"(?P<sign>[+-]?)(?P<count>\d+)steps")
_LEVEL = re.compile(r"(?P<kind>violation|loss)<(?P<value>.+)")


@dataclass(frozen=True)
class End:
    """When a phase ends. kind: "share", "step", "for", "left", "violation" or "loss", as listed above."""

    kind: str
    value: float

    def __post_init__(self) -> None:
        number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        if self.kind not in ("share", *COUNTS, *LEVELS) or not number:
            raise UsageError(f"End({self.kind!r}, {self.value!r}) is no end of a phase; {SYNTAX}")
        if self.kind == "share" and not 0 < self.value < 1:
            raise UsageError(f"a phase cannot end at the share {self.value:g} of training; give one between 0 and 1")
        if self.kind in COUNTS and (self.value != int(self.value) or self.value < 1):
            raise UsageError(f"a phase cannot end after {self.value!r} steps; give a whole number of at least 1")
        if self.kind in LEVELS and not 0 < self.value < float("inf"):
            raise UsageError(f"a {self.kind} below {self.value:g} cannot be reached; give a positive number")

    @property
    def needs_total(self) -> bool:
        """Whether it refers to the length of training."""
        return self.kind in ("share", "left")

    def __str__(self) -> str:
        if self.kind in COUNTS:
            return f"{COUNTS[self.kind]}{int(self.value)}steps"
        return repr(float(self.value)) if self.kind == "share" else f"{self.kind}<{float(self.value)!r}"


@dataclass(frozen=True)
class Phase:
    """A method with options of `program.trainer` (besides those of the whole run), until the first of its ends."""

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    until: tuple[End, ...] = ()

    def __str__(self) -> str:
        inside = ",".join(f"{name}={_word(value)}" for name, value in self.options.items())
        return (
            f"{self.method}{f'[{inside}]' if inside else ''}{'@' if self.until else ''}{'|'.join(map(str, self.until))}"
        )


Recipe = tuple[Phase, ...]
Given = str | Phase | Sequence[Phase]  # how a user may give a recipe; a method's name is one of a single phase


def recipe_of(given: Given) -> Recipe:
    """A recipe from a text or from phases, checked; UsageError says which phase is wrong."""
    if isinstance(given, str):
        phases: Recipe = tuple(_phase(part, given) for part in _parts(given))
    else:
        phases = (given,) if isinstance(given, Phase) else tuple(given)
    _check(phases)
    return tuple(replace(phase, method=get_method(phase.method).name) for phase in phases)


def refuse_inexact(recipe: Recipe) -> None:
    """For exact=True: every phase has plain training's gradients."""
    for phase in recipe:
        if not get_method(phase.method).exact:
            raise UsageError(
                f"exact=True, and {phase.method!r} does not have plain training's gradients; use method='auto', "
                f"'zbh2', 'zb', '1f1b', 'gpipe' or 'bp'"
            )


def recipes_of(text: str) -> list[Recipe]:
    """Several recipes with commas between them, as in "1f1b,penalty@0.5,stream,zb": each ends with its first phase that
    has no end."""
    found: list[list[Phase]] = [[]]
    for part in _parts(text):
        found[-1].append(_phase(part, text))
        if not found[-1][-1].until:
            found.append([])
    return [recipe_of(phases) for phases in found if phases]


def recipe_text(recipe: Sequence[Phase]) -> str:
    """The text of a recipe. `recipe_of` reads it again, if no option has a value without a short form (a `Beta`)."""
    return ",".join(map(str, recipe))


def shares(recipe: Recipe, total: int | None = None) -> list[float]:
    """The share of training that each phase is predicted to have: up to its first end that is known beforehand.

    Ends by a violation or a loss are not known, nor are numbers of steps without the length of training: a phase that
    has no other end counts as nothing, for such phases are meant to be short.
    """
    found, begin = [], 0.0
    for phase in recipe:
        ends = [at for end in phase.until if (at := _position(end, begin, total)) is not None]
        end = min(ends, default=begin) if phase.until else 1.0
        found.append(max(0.0, min(end, 1.0) - begin))
        begin = max(begin, min(end, 1.0))
    return found


def main_phase(recipe: Recipe, total: int | None = None) -> Phase:
    """The phase with the largest share of training, for which stages are planned."""
    return max(zip(recipe, shares(recipe, total), strict=True), key=lambda pair: pair[1])[0]


def whole_rho(parts: Sequence[float], rhos: Sequence[float]) -> float:
    """Speedup of a whole run from its phases' shares and speedups: the time of each is its share over its speedup."""
    time = sum(part / rho for part, rho in zip(parts, rhos, strict=True) if part)
    return 1 / time if time else 1.0


def _position(end: End, begin: float, total: int | None) -> float | None:
    if end.kind == "share":
        return end.value
    if end.kind in LEVELS or not total:
        return None
    return {"step": end.value, "for": begin * total + end.value, "left": total - end.value}[end.kind] / total


def _check(phases: Recipe) -> None:
    if not phases:
        raise UsageError(f"a recipe has at least one phase; {SYNTAX}")
    for phase in phases:
        if not isinstance(phase, Phase):
            raise UsageError(f"{phase!r} is not a Phase; {SYNTAX}")
        method = get_method(phase.method)
        for name in phase.options:
            if name in WHOLE_RUN:
                raise UsageError(f"{name} is an option of the whole run, not of the phase {phase}")
        if any(end.kind == "violation" for end in phase.until) and not method.aux:
            raise UsageError(
                f"{phase}: {method.name!r} has no λ, so no violation; end it by a share, steps or a loss, or let "
                f"AuxNets learn beside an exact pipeline: warmup@{'|'.join(map(str, phase.until))}"
            )
        if any(end.kind == "loss" for end in phase.until) and method.replay_buffers:
            raise UsageError(f"{phase}: ranks of {method.name!r} are steps apart and have no loss in common")
    for phase in phases[:-1]:
        if not phase.until:
            raise UsageError(f"{phase} has no end, so {phases[phases.index(phase) + 1]} never begins; {SYNTAX}")
    if phases[-1].until:
        raise UsageError(f"nothing follows {phases[-1]}; leave its end out, or name the next phase after a comma")
    known = [end.value for phase in phases for end in phase.until if end.kind == "share" and len(phase.until) == 1]
    if known != sorted(set(known)):
        raise UsageError(
            f"the shares of {recipe_text(phases)} are points of the whole run and must rise: "
            f"{', '.join(f'{value:g}' for value in known)}"
        )


def _parts(text: str) -> list[str]:
    """The phases of a text: split at commas outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^\[\]]*\])", text)]


def _phase(text: str, whole: str) -> Phase:
    found = _PHASE.fullmatch(text)
    if found is None:
        inside = f" in {whole!r}" if whole != text else ""
        raise UsageError(f"{text!r}{inside} is no phase of training; {SYNTAX}")
    options = dict(_option(part.strip(), text) for part in (found["options"] or "").split(",") if part.strip())
    return Phase(found["method"], options, tuple(_end(p.strip(), text) for p in (found["until"] or "").split("|") if p))


def _option(text: str, phase: str) -> tuple[str, Any]:
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name.isidentifier() or not value:
        raise UsageError(f"{text!r} in {phase!r} is no option; write OPTION=VALUE, such as micro=4")
    if _NUMBER.fullmatch(value):
        return name, float(value) if re.search(r"[.eE]", value) else int(value)
    return name, WORDS.get(value, value)


def _word(value: Any) -> str:
    for word, known in WORDS.items():
        if value is known:
            return word
    return repr(value) if isinstance(value, (int, float)) else str(value)


def _end(text: str, phase: str) -> End:
    if found := _STEPS.fullmatch(text):
        kind = next(kind for kind, sign in COUNTS.items() if sign == found["sign"])
        return End(kind, int(found["count"]))
    if (found := _LEVEL.fullmatch(text)) and _NUMBER.fullmatch(found["value"]):
        return End(found["kind"], float(found["value"]))
    if _NUMBER.fullmatch(text):
        return End("share", float(text))
    raise UsageError(f"{text!r} in {phase!r} is no end of a phase; {SYNTAX}")
