"""A comparison as two Markdown tables, with notes on how to read them."""

from __future__ import annotations

from collections.abc import Sequence

from lpcompile.compare.properties import NAMES, PAPER_TABLE_1, Mark, differences
from lpcompile.compare.results import Comparison, MethodRow
from lpcompile.compare.run import DEFAULT_TARGET_SHARE, MIN_MARKED_STAGES
from lpcompile.core.tables import size
from lpcompile.draw.markdown import NO_VALUE, markdown, shortened, without_empty
from lpcompile.training.measures import on

MAX_UNTOLD_LOSS = 0.05  # share of the time that a core may work for others without a note


def text(found: Comparison) -> str:
    """The tables and notes of all that has been measured so far."""
    rows = [r for r in (found.serial, *found.rows) if r is not None]
    if not rows:
        return "nothing has been measured"
    parts = [headline(found), markdown(*measured_table(found))]
    marked = [r for r in found.rows if r.marks]
    if marked:
        parts.append(markdown(["method", *NAMES], [[r.method, *(r.marks[n][0] for n in NAMES)] for r in marked]))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes(found))])


def headline(found: Comparison) -> str:
    r = found.request
    samples = round(found.serial.rate * found.serial.epoch) if found.serial else 0
    return (
        f"{r.model} on {r.data}: K = {r.K}, {r.epochs} epochs of {samples:,} samples, batch {r.batch}, {r.optimizer} "
        f"with lr {r.lr:g}, seed {r.seed}; {on(found.machine)}"
    )


def headers(found: Comparison) -> list[str]:
    return ["method", "test accuracy", "ρ (range)", f"s to {100 * found.target:.1f} %", "samples/s",
            "peak memory of ranks", "sent a step", "idle of ranks"]  # fmt: skip


def cells(row: MethodRow) -> list[str]:
    if not row.seconds:
        return [row.method, shortened(row.why), *[NO_VALUE] * 6]
    again = f" ({percent(row.recalibrated)})" if row.recalibrated is not None else ""
    alone = row.method == "serial"
    rho, low, high = row.rho
    return [
        "BP on one core" if alone else row.method,
        percent(row.accuracy[-1]) + again,
        "1" if alone else f"{rho:.2f} ({low:.2f}-{high:.2f})",
        NO_VALUE if row.reached is None else f"{row.reached:.1f}",
        f"{row.rate:.0f}",
        " / ".join(size(r["tensors"]) for r in row.ranks),
        NO_VALUE if alone else size(row.sent),
        NO_VALUE if alone else " / ".join(f"{100 * r['idle']:.0f} %" for r in row.ranks),
    ]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def notes(found: Comparison) -> list[str]:
    """How to read the numbers of this request and result."""
    r, machine = found.request, found.machine
    lines = [
        "test accuracy: of the serial model after the last epoch; in brackets with BatchNorm statistics taken anew.",
        "ρ: seconds of plain training's epoch over those of the method's, loading included, evaluation not; medians "
        "without the first epoch, against plain training just before and just after. Range: slowest against fastest.",
        f"s to {100 * found.target:.1f} %: seconds of training until an evaluation (one an epoch) shows it"
        + ("." if r.target else f"; it is {DEFAULT_TARGET_SHARE:.2f} of plain training's last accuracy."),
        "peak memory: bytes of tensors alive at once (weights, optimizer, activations, messages); idle: waiting for "
        "others.",
    ]
    if r.K > machine["cores"]:
        lines.append(
            f"{r.K} ranks shared {machine['cores']} cores: ρ, samples/s and idle are not those of {r.K} cores."
        )
    lines += not_alone(found)
    measured = [row for row in (found.serial, *found.rows) if row is not None and row.seconds]
    if measured and all(row.reached is None for row in measured):
        lines.append(f"no column of seconds to {100 * found.target:.1f} %: nobody reached it.")
    micro = [f"{row.method} {row.micro}" for row in found.rows if row.micro > 1]
    if micro:
        lines.append(f"micro-batches a step: {', '.join(micro)}; of the others 1.")
    started = [f"{row.method} {row.zeroed}" for row in found.rows if row.zeroed]
    if started:
        lines.append(
            f"parameters of the model that a consistent start set to zero (branches that AuxNets leave out): "
            f"{', '.join(started)}; the other methods and plain training began with the model's own."
        )
    lines += [f"{row.method} {row.why}" for row in found.rows if row.why]
    return lines + marks_notes(found.rows, r.K)


def not_alone(found: Comparison) -> list[str]:
    """A sentence where other processes took time from the cores of the ranks."""
    lost = max((rank["lost"] for row in (found.serial, *found.rows) if row for rank in row.ranks), default=0.0)
    if lost <= MAX_UNTOLD_LOSS or found.request.K > found.machine["cores"]:
        return []
    return [
        f"the machine was not alone: up to {100 * lost:.0f} % of a process's time its core worked for others, and "
        f"ρ, samples/s and idle show that too."
    ]


def measured_table(found: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headers and rows without the columns that no method has a value in."""
    rows = [r for r in (found.serial, *found.rows) if r is not None]
    names, lines, _ = without_empty(headers(found), [cells(row) for row in rows])
    return names, lines


def marks_notes(rows: Sequence[MethodRow], K: int) -> list[str]:
    """Differences between the schedules and the paper's table."""
    lines = []
    compared = [row.method for row in rows if row.marks and row.method in PAPER_TABLE_1]
    if compared:
        lines.append(
            f"✓ and × are derived from the schedules of {max(K, MIN_MARKED_STAGES)} stages; "
            f"for {', '.join(compared)} the paper prints marks too, and these differ:"
        )
    found = []
    for row in rows:
        marks = {name: Mark(sign == "✓", why) for name, (sign, why) in row.marks.items()}
        found += differences(row.method, marks)
    if compared and not found:
        return [lines[0].replace("and these differ:", "the same ones.")]
    return lines + found
