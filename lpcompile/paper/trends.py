"""Whether what the paper concludes from a table holds here: one sentence, from the numbers alone.

A difference counts where it is larger than the spread over seeds and MARGIN points (twice that for a single seed). One
point is about the standard deviation of an accuracy on two thousand images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from lpcompile.paper.results import Result

MARGIN = 1.0  # points
LEARNT = 20.0  # percent: twice what chance gives among ten classes
NEAR = 2.0  # points below BP that the paper calls comparable (it has up to 2.4)


class MissingRow(Exception):
    """A row that the sentence needs has no accuracy."""


def verdict(key: str, found: Sequence[Result]) -> str:
    """Begins with "holds", "holds in part", "does not hold" or "open"."""
    rows = {r.printed.name if r.printed else r.name: r for r in found}

    def value(name: str) -> float:
        mean = rows[name].mean if name in rows else None
        if mean is None:
            row = rows.get(name)
            raise MissingRow(f"{row.name}: {row.why or 'no accuracy'}" if row else f"{name}: not run at this scale")
        return mean

    try:
        said = CLAIMS[key](found, value)
    except MissingRow as missing:
        return f"open: {missing}"
    best = max(row.mean for row in found if row.mean is not None)
    if best < LEARNT:
        return f"open: no row learnt much, the best has {best:.1f} %; this needs a longer run"
    return said + _missing_seeds(found)


def _missing_seeds(found: Sequence[Result]) -> str:
    """What a sentence on fewer runs than there are to be rests on."""
    done, wanted = sum(len(r.accuracy) + r.failed for r in found), sum(r.wanted for r in found)
    return f" (so far, from {done} of {wanted} runs)" if done < wanted else ""


Value = Callable[[str], float]


def _said(checks: Sequence[tuple[str, bool]]) -> str:
    """The claims that were checked, each with its figures."""
    good = [text for text, holds in checks if holds]
    bad = [text for text, holds in checks if not holds]
    if not bad:
        return f"holds: {'; '.join(good)}"
    return f"holds in part: {'; '.join(good)}; but {'; '.join(bad)}" if good else f"does not hold: {'; '.join(bad)}"


def margin(*results: Result) -> float:
    """The difference from which on two rows differ; of a single seed the spread is not known."""
    alone = any(len(r.accuracy) < 2 for r in results)
    return max([MARGIN * (2 if alone else 1), *(r.spread for r in results)])


def _comparable(name: str, ours: float, reference: float, what: str = "BP") -> tuple[str, bool]:
    gap = ours - reference
    return f"{name} is {abs(gap):.1f} points {'above' if gap >= 0 else 'below'} {what}", gap >= -NEAR


def _above(name: str, ours: float, other: str, theirs: float, least: float = MARGIN) -> tuple[str, bool]:
    return f"{name} {ours:.1f} % against {theirs:.1f} % for {other}", ours - theirs >= least


def _rising(what: str, pairs: Sequence[tuple[str, float | None]]) -> list[tuple[str, bool]]:
    """Speedups that must rise from the first to the last."""
    known = [(name, rho) for name, rho in pairs if rho is not None]
    if len(known) < 2:
        return []
    text = ", ".join(f"{name} {rho:.2f}" for name, rho in known)
    return [(f"{what}: {text}", all(b > a for (_, a), (_, b) in pairwise(known)))]


def table_3(found: Sequence[Result], value: Value) -> str:
    ours = value("penalty + AuxNet, augmentation")
    stored = value("penalty stored, no augmentation")
    return _said([
        _above("penalty + AuxNet with augmentation", ours, "stored penalty without", stored),
        _above("BP with augmentation", value("BP, augmentation"), "BP without", value("BP, no augmentation")),
        _comparable("penalty + AuxNet", ours, value("BP, augmentation")),
    ])  # fmt: skip


def figure_5(found: Sequence[Result], value: Value) -> str:
    gaps = [
        (ratio, value(f"BP, ratio {ratio}") - value(f"{method}, ratio {ratio}"))
        for ratio, method in (("1", "penalty stored"), ("3", "penalty stored"), ("∞", "penalty + AuxNet"))
    ]
    text = ", ".join(f"{gap:.1f} points at {ratio}" for ratio, gap in gaps)
    return _said([(f"gap to BP {text}", gaps[0][1] - gaps[-1][1] >= margin(*found))])


def capacity(found: Sequence[Result], value: Value) -> str:
    """Tables 4 and 9: rows of the paper from the largest AuxNet to the smallest."""
    ladder = [r for r in found if r.printed and not r.plain]
    least = value(ladder[-1].printed.name) if ladder[-1].printed else 0.0
    most = value(ladder[0].printed.name) if ladder[0].printed else 0.0
    loss = most - least
    moved = f"{'falls' if loss >= 0 else 'rises'} by {abs(loss):.1f} points"
    near = margin(ladder[0], ladder[-1]) + NEAR
    return _said([
        (f"from the largest AuxNet to the smallest accuracy {moved}",
         -near <= loss <= near),
        _comparable("the smallest", least, value("BP")),
        *_rising("ρ", [(r.name, r.rho) for r in ladder]),
    ])  # fmt: skip


def table_5(found: Sequence[Result], value: Value) -> str:
    names = [r.printed.name.removesuffix(", decoupled") for r in found if r.printed and not r.plain]
    shown = {r.printed.name: r.name.removesuffix(", decoupled") for r in found if r.printed}
    checks = [_comparable(shown[f"{n}, decoupled"], value(f"{n}, decoupled"), value(f"{n}, BP")) for n in names]
    rhos = [(r.name.removesuffix(", decoupled"), r.rho) for r in reversed(found) if r.printed and not r.plain]
    return _said([*checks, *_rising("ρ", rhos)])


def table_6(found: Sequence[Result], value: Value) -> str:
    several = [r for r in found if not r.plain]
    pairs = [(r.name, value(r.printed.name if r.printed else r.name)) for r in several]
    text = ", ".join(f"{name} {accuracy:.1f} %" for name, accuracy in pairs)
    slack = margin(*several)
    falls = all(b <= a + slack for (_, a), (_, b) in pairwise(pairs))
    return _said([
        (f"accuracy does not rise with K: {text}", falls),
        *(_comparable(name, accuracy, value("K = 1")) for name, accuracy in pairs),
        *_rising("ρ", [(r.name, r.rho) for r in several]),
    ])  # fmt: skip


def table_7(found: Sequence[Result], value: Value) -> str:
    pairs = {name: value(name) for name in ("β = 10³", "β = 10⁴", "β = 10⁵", "β = 10⁶")}
    best = max(pairs, key=pairs.__getitem__)
    text = ", ".join(f"{name.removeprefix('β = ')}: {accuracy:.1f} %" for name, accuracy in pairs.items())
    checks = [(f"the best β is {best.removeprefix('β = ')} ({text})", best in ("β = 10⁴", "β = 10⁵"))]
    if best != "β = 10³":
        checks.append(_above(best.removeprefix("β = "), pairs[best], "10³", pairs["β = 10³"]))
    return _said(checks)


def table_8(found: Sequence[Result], value: Value) -> str:
    ours = value("penalty + AuxNet")
    return _said([
        _above("penalty + AuxNet", ours, "stored penalty", value("penalty stored")),
        *(_comparable("penalty + AuxNet", ours, value(name), name) for name in ("BP", "DDG", "FR")),
    ])  # fmt: skip


def table_10(found: Sequence[Result], value: Value) -> str:
    ours = value("penalty + AuxNet")
    return _said([
        _above("penalty + AuxNet", ours, "FR", value("FR"), 0.0),
        _above("penalty + AuxNet", ours, "Sync-DGL", value("Sync-DGL"), 0.0),
        _comparable("penalty + AuxNet", ours, value("BP")),
    ])  # fmt: skip


def ablation(found: Sequence[Result], value: Value) -> str:
    said = []
    start = [i for i, row in enumerate(found) if row.name in STARTS]
    for begin, end in zip(start, [*start[1:], len(found)], strict=True):
        said.append(_switches(found[begin], found[begin + 1 : end], value(found[begin].name)))
    return "; ".join(said)


STARTS = ("as published (derived AuxNets)", "lpcompile's settings")


def _switches(base: Result, rows: Sequence[Result], reference: float) -> str:
    parts = []
    for row in rows:
        if row.mean is None:
            parts.append(f"{row.name} {row.why.split(':')[0] or 'has no accuracy'}")
        elif abs(row.mean - reference) > margin(base, row):
            parts.append(f"{row.name} {row.mean - reference:+.1f}")
    same = [r.name for r in rows if r.mean is not None and abs(r.mean - reference) <= margin(base, r)]
    within = f"; within the spread over seeds or {MARGIN:g} point: {', '.join(same)}" if same else ""
    return f"{base.name} has {reference:.1f} %: {', '.join(parts) or 'no switch matters'}{within}"


CLAIMS: dict[str, Callable[[Sequence[Result], Value], str]] = {
    "3": table_3,
    "5f": figure_5,
    "4": capacity,
    "5": table_5,
    "6": table_6,
    "7": table_7,
    "8": table_8,
    "9": capacity,
    "10": table_10,
    "ablation": ablation,
}
