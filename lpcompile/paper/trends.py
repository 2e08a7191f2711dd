"""Whether what the paper concludes from a table holds here: one sentence, from the numbers alone.

A row is above another where the difference is at least the spread over seeds and MARGIN points (twice that for a single
seed). One point is about the standard deviation of an accuracy on two thousand images. Where BatchNorm statistics taken
anew turn a claim, the sentence says so: a claim that hangs on them is none about the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from lpcompile.paper.experiments import ABLATION, START, START_ROW
from lpcompile.paper.results import PREDICTED, Result

MARGIN = 1.0  # points
LEARNT = 20.0  # percent: twice what chance gives among ten classes
NEAR = 2.0  # points below BP that the paper calls comparable (it has up to 2.4)
SAME_SPEED = 0.9  # of a speedup that the paper calls comparable (it has 0.97)
FAR = 0.1  # a violation: λ and X differ by a third of X's size

Check = tuple[str, bool]  # a claim with its figures, and whether it holds
Row = Callable[[str], Result]  # by the paper's column, or by our name; with an accuracy


class MissingRow(Exception):
    """A row that the sentence needs has no accuracy."""


def verdict(key: str, found: Sequence[Result]) -> str:
    """Begins with "holds", "holds in part", "does not hold" or "open"; the ablation's with its first row."""
    try:
        said = ablation(found) if key == ABLATION else _said(_checks(key, found), _checks(key, list(map(_anew, found))))
    except MissingRow as missing:
        return f"open: {missing}"
    best = max(row.mean for row in found if row.mean is not None)
    if best < LEARNT:
        return f"open: no row learnt much, the best has {best:.1f} %; this needs a longer run"
    return said + _missing_seeds(found)


def _checks(key: str, found: Sequence[Result]) -> list[Check]:
    return CLAIMS[key](found, _by_name(found))


def _by_name(found: Sequence[Result]) -> Row:
    rows = {r.printed.name if r.printed else r.name: r for r in found}

    def row(name: str) -> Result:
        if name not in rows:
            raise MissingRow(f"{name}: not run at this scale")
        if rows[name].mean is None:
            raise MissingRow(f"{rows[name].name}: {rows[name].why or 'no accuracy'}")
        return rows[name]

    return row


def _anew(row: Result) -> Result:
    """The row with the accuracies after BatchNorm statistics were taken anew."""
    return replace(row, accuracy=row.recalibrated) if row.recalibrated else row


def _missing_seeds(found: Sequence[Result]) -> str:
    """What a sentence on fewer runs than there are to be rests on."""
    done, wanted = sum(len(r.accuracy) + r.failed for r in found), sum(r.wanted for r in found)
    return f" (so far, from {done} of {wanted} runs)" if done < wanted else ""


def _said(checks: Sequence[Check], anew: Sequence[Check]) -> str:
    """The claims that were checked, each with its figures; and those that norms taken anew turn."""
    good = [text for text, holds in checks if holds]
    bad = [text for text, holds in checks if not holds]
    turned = [text for (text, holds), (_, before) in zip(anew, checks, strict=True) if holds != before]
    also = f"; with norms anew this turns: {'; '.join(turned)}" if turned else ""
    if not bad:
        return f"holds: {'; '.join(good)}{also}"
    whole = f"holds in part: {'; '.join(good)}; but {'; '.join(bad)}" if good else f"does not hold: {'; '.join(bad)}"
    return whole + also


def _mean(row: Result) -> float:
    if row.mean is None:
        raise MissingRow(f"{row.name}: {row.why or 'no accuracy'}")
    return row.mean


def margin(*results: Result) -> float:
    """The difference from which on two rows differ; of a single seed the spread is not known."""
    return max([least(*results), *(r.spread for r in results)])


def least(*results: Result) -> float:
    return MARGIN * (2 if any(len(r.accuracy) < 2 for r in results) else 1)


def _comparable(name: str, ours: Result, reference: Result, what: str = "BP") -> Check:
    gap = _mean(ours) - _mean(reference)
    return f"{name} is {abs(gap):.1f} points {'above' if gap >= 0 else 'below'} {what}", gap >= -NEAR


def _above(name: str, ours: Result, other: str, theirs: Result) -> Check:
    text = f"{name} {_mean(ours):.1f} % against {_mean(theirs):.1f} % for {other}"
    return text, _mean(ours) - _mean(theirs) >= margin(ours, theirs)


def _ahead(name: str, ours: Result, other: str, theirs: Result) -> Check:
    """The order alone, where the paper's own difference is small (0.2 points)."""
    text, clear = _above(name, ours, other, theirs)
    ahead = _mean(ours) >= _mean(theirs)
    return (text if clear or not ahead else f"{text} (too near to tell apart)"), ahead


def _speeds(rows: Sequence[Result]) -> tuple[str, list[float]]:
    """Speedups that can be compared: a measured one is not held against one that is only predicted."""
    mixed = len({r.rho_kind for r in rows}) > 1
    found = [r.predicted if mixed else r.rho for r in rows]
    kind = "ρ (predicted)" if mixed or rows[0].rho_kind == PREDICTED else "ρ"
    return kind, [rho for rho in found if rho is not None]


def _rising(rows: Sequence[Result], names: Sequence[str]) -> list[Check]:
    """Speedups that must rise from the first to the last."""
    kind, rhos = _speeds(rows)
    if len(rows) < 2 or len(rhos) < len(rows):
        return []
    text = ", ".join(f"{name} {rho:.2f}" for name, rho in zip(names, rhos, strict=True))
    return [(f"{kind}: {text}", all(b > a for a, b in pairwise(rhos)))]


def _fast(ours: Result, other: str, theirs: Result, share: float = 1.0) -> list[Check]:
    """At least this share of the other's speedup."""
    kind, rhos = _speeds([ours, theirs])
    if len(rhos) < 2:
        return []
    return [(f"{kind} {rhos[0]:.2f} against {rhos[1]:.2f} for {other}", rhos[0] >= share * rhos[1])]


def table_3(found: Sequence[Result], row: Row) -> list[Check]:
    ours = row("penalty + AuxNet, augmentation")
    return [
        _above("penalty + AuxNet with augmentation", ours, "stored penalty without",
               row("penalty stored, no augmentation")),
        _above("BP with augmentation", row("BP, augmentation"), "BP without", row("BP, no augmentation")),
        _comparable("penalty + AuxNet", ours, row("BP, augmentation")),
    ]  # fmt: skip


def figure_5(found: Sequence[Result], row: Row) -> list[Check]:
    gaps = [
        (ratio, _mean(row(f"BP, ratio {ratio}")) - _mean(row(f"{method}, ratio {ratio}")))
        for ratio, method in (("1", "penalty stored"), ("3", "penalty stored"), ("∞", "penalty + AuxNet"))
    ]
    text = ", ".join(f"{gap:.1f} points at {ratio}" for ratio, gap in gaps)
    return [(f"gap to BP {text}", gaps[0][1] - gaps[-1][1] >= margin(*found))]


def capacity(found: Sequence[Result], row: Row) -> list[Check]:
    """Tables 4 and 9: rows of the paper from the largest AuxNet to the smallest, which may lose a little."""
    ladder = [row(r.printed.name) for r in found if r.printed and not r.plain]
    loss = _mean(ladder[0]) - _mean(ladder[-1])
    moved = f"{'falls' if loss > 0 else 'rises'} by {abs(loss):.1f} points"
    slack = margin(ladder[0], ladder[-1])
    return [
        (f"from the largest AuxNet to the smallest accuracy {moved}", -slack <= loss <= slack + NEAR),
        _comparable("the smallest", ladder[-1], row("BP")),
        *_rising(ladder, [r.name for r in ladder]),
    ]


def table_5(found: Sequence[Result], row: Row) -> list[Check]:
    ours = [row(r.printed.name) for r in found if r.printed and not r.plain]
    names = [r.name.removesuffix(", decoupled") for r in ours]
    printed = [r.printed.name.removesuffix(", decoupled") for r in ours if r.printed]
    checks = [
        _comparable(name, r, row(f"{of}, BP")) for name, r, of in zip(names, ours, printed, strict=True)
    ]  # the deepest first
    return [*checks, *_rising(ours[::-1], names[::-1])]


def table_6(found: Sequence[Result], row: Row) -> list[Check]:
    several = [row(r.printed.name if r.printed else r.name) for r in found if not r.plain]
    text = ", ".join(f"{r.name} {_mean(r):.1f} %" for r in several)
    slack = margin(*several)
    return [
        (f"accuracy does not rise with K: {text}", all(_mean(b) <= _mean(a) + slack for a, b in pairwise(several))),
        *(_comparable(r.name, r, row("K = 1")) for r in several),
        *_rising(several, [r.name for r in several]),
    ]


def table_7(found: Sequence[Result], row: Row) -> list[Check]:
    rows = {name: row(f"β = {name}") for name in ("10³", "10⁴", "10⁵", "10⁶")}
    best = max(rows, key=lambda name: _mean(rows[name]))
    text = ", ".join(f"{name}: {_mean(r):.1f} %" for name, r in rows.items())
    middle = max(("10⁴", "10⁵"), key=lambda name: _mean(rows[name]))
    return [
        (f"the best β is {best} ({text})", best == middle),
        _above(middle, rows[middle], "10³", rows["10³"]),
        _ahead(middle, rows[middle], "10⁶", rows["10⁶"]),
    ]


def table_8(found: Sequence[Result], row: Row) -> list[Check]:
    ours = row("penalty + AuxNet")
    return [
        _above("penalty + AuxNet", ours, "stored penalty", row("penalty stored")),
        *(_comparable("penalty + AuxNet", ours, row(name), name) for name in ("BP", "DDG", "FR")),
        *(check for name in ("DDG", "FR") for check in _fast(ours, name, row(name))),
    ]


def table_10(found: Sequence[Result], row: Row) -> list[Check]:
    ours = row("penalty + AuxNet")
    return [
        _ahead("penalty + AuxNet", ours, "FR", row("FR")),
        _ahead("penalty + AuxNet", ours, "Sync-DGL", row("Sync-DGL")),
        _comparable("penalty + AuxNet", ours, row("BP")),
        *_fast(ours, "Sync-DGL", row("Sync-DGL"), SAME_SPEED),
    ]


def ablation(found: Sequence[Result]) -> str:
    said = []
    start = [i for i, r in enumerate(found) if r.name in STARTS]
    for begin, end in zip(start, [*start[1:], len(found)], strict=True):
        said.append(_switches(found[begin], found[begin + 1 : end], _mean(found[begin])))
    return "; ".join(said)


STARTS = ("as published (derived AuxNets)", "lpcompile's settings", "BP")


def _switches(base: Result, rows: Sequence[Result], reference: float) -> str:
    parts = []
    for row in rows:
        if row.mean is None:
            parts.append(f"{row.name} {row.why.split(':')[0] or 'has no accuracy'}")
        elif abs(row.mean - reference) > margin(base, row):
            parts.append(f"{row.name} {row.mean - reference:+.1f}")
    same = [r for r in rows if r.mean is not None and abs(r.mean - reference) <= margin(base, r)]
    points = max((least(base, r) for r in same), default=MARGIN)
    of = f"{points:g} {'point' if points == 1 else 'points'}"
    within = f"; within the spread over seeds or {of}: {', '.join(r.name for r in same)}" if same else ""
    return f"{base.name} has {reference:.1f} %: {', '.join(parts) or 'no switch matters'}{within}"


CLAIMS: dict[str, Callable[[Sequence[Result], Row], list[Check]]] = {
    "3": table_3,
    "5f": figure_5,
    "4": capacity,
    "5": table_5,
    "6": table_6,
    "7": table_7,
    "8": table_8,
    "9": capacity,
    "10": table_10,
}


def reading(key: str, found: Sequence[Result]) -> str:
    """What the rows say of the reason for a gap to BP, "" where they say nothing."""
    try:
        return READINGS[key](found, _by_name(found)) if key in READINGS else ""
    except MissingRow:
        return ""


def size_or_start(found: Sequence[Result], row: Row) -> str:
    """Table 4: whether the size of AuxNets, what is left of the violation, or the first weights make the gap."""
    ladder = [row(r.printed.name) for r in found if r.printed and not r.plain]
    means, ends = [_mean(r) for r in ladder], [r.end_violation for r in ladder]
    shares, left = [r.share for r in ladder if r.share], [v for v in ends if v is not None]
    if max(means) - min(means) > margin(*ladder) or not shares or len(left) < len(ladder) or max(left) > FAR:
        return ""
    start, base = row(START_ROW), row("BP")
    if _mean(start) - max(means) <= margin(start, *ladder) or _mean(base) - max(means) <= margin(base, *ladder):
        return ""
    same = row(START)
    return (
        f"AuxNets of {min(shares):.0%} to {max(shares):.0%} of a stage end within {max(means) - min(means):.1f} points "
        f"of each other, with violations of {min(left):.2g} to {max(left):.2g}: neither their size nor what is left of "
        f"the violation makes the gap to BP. After a consistent start (λ = X before the first step) it is "
        f"{_mean(start):.1f} %. That start lifts BP too, to {_mean(same):.1f} %, from which it is "
        f"{abs(_mean(same) - _mean(start)):.1f} points {'below' if _mean(start) <= _mean(same) else 'above'}"
    )


def lengths(found: Sequence[Result], row: Row) -> str:
    """Figure 5: an epoch has every fixed view of an image, so runs at different ratios differ in more than that."""
    steps = {ratio: row(f"BP, ratio {ratio}").steps for ratio in ("1", "3", "∞")}
    if len(set(steps.values())) == 1:
        return ""
    text = ", ".join(f"{count} at {ratio}" for ratio, count in steps.items())
    return f"An epoch has every view of an image, so runs differ in length: steps {text}"


def violated(found: Sequence[Result], row: Row) -> str:
    """Table 10: whether λ has come near X at all."""
    ours = row("penalty + AuxNet")
    left = ours.end_violation
    if left is None or left <= FAR:
        return ""
    return f"The violation is still {left:.2g} in the last epoch: stages were trained on values unlike X"


READINGS: dict[str, Callable[[Sequence[Result], Row], str]] = {"4": size_or_start, "5f": lengths, "10": violated}
