"""A bench as Markdown tables, with notes on how to read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lpcompile.bench.contenders.ways import DDP, FSDP, LIMIT, PLAIN, THREADS, TORCH, base
from lpcompile.bench.quiet import BUSY
from lpcompile.bench.results import Bench, BenchRow, LinkResults
from lpcompile.bench.to_accuracy import HEADERS, accuracy_cells, accuracy_title
from lpcompile.core.tables import size
from lpcompile.draw.markdown import NO_VALUE, markdown, shortened, without_empty
from lpcompile.runtime.methods import get_method
from lpcompile.training.measures import on

PARTS = ("forward", "backward", "aux", "optimizer", "transfer", "python", "wait")
FAMILIES = ("plain", "data parallel", "torch's pipelines", "exact", "delayed", "decoupled")
SHOWN = {"aux": "AuxNet", "python": "Python"}


def text(found: Bench) -> str:
    """The tables and notes of all that has been measured so far."""
    measured = [r for r in found.rows if r.step]
    if not measured:
        return "\n".join(["nothing has been measured", *(f"- {row.name} {row.why}" for row in found.rows if row.why)])
    return "\n\n".join([*tables(found), "\n".join(f"- {note}" for note in notes(found))])


def tables(found: Bench) -> list[str]:
    """The headline, and each table with its title."""
    measured = [r for r in found.rows if r.step]
    names, lines, _ = measured_table(found)
    parts = [headline(found), markdown(names, lines)]
    names = ["contender", *(SHOWN.get(p, p) for p in PARTS)]
    names, lines, none = without_empty(names, [part_cells(r) for r in measured])
    parts.append(
        "where the time of a step goes, ms of every rank" + (f" (nobody: {', '.join(none)}):" if none else ":")
    )
    parts.append(markdown(names, lines))
    for one in found.links:
        parts.append(link_headline(one))
        parts.append(markdown(link_headers(found), [link_cells(r, one, found) for r in one.rows]))
    trained = [r for r in found.rows if r.curve]
    if trained:
        parts.append(accuracy_title(found))
        names = [called(r.name, found.request.K) for r in trained]
        lines = [accuracy_cells(r, found, n) for r, n in zip(trained, names, strict=True)]
        parts.append(markdown(HEADERS, lines))
    if found.start:
        parts.append("before and between steps, seconds:")
        parts.append(markdown(list(found.start), [[f"{s:.2f}" for s in found.start.values()]]))
    if found.scaling:
        methods = [m for m in found.scaling[-1] if m != "K"] or [m for m in found.scaling[0] if m != "K"]
        lines = [[str(s["K"]), *(f"{s[m]:.2f}" if m in s else NO_VALUE for m in methods)] for s in found.scaling]
        costs = "measured costs" if found.request.cost == "measured" else "FLOPs, which are not this machine's times,"
        parts.append(f"ρ for more stages, simulated from {costs} on a machine like this with K cores; the limit is K:")
        parts.append(markdown(["K", *methods], lines))
    return parts


def headline(found: Bench) -> str:
    r, machine = found.request, found.machine
    how = [r.optimizer, *(["channels last"] if r.channels_last else []), *(["compiled"] if r.compile else []),
           *([f"{r.transfer} transfers"] if r.transfer else []),
           *([f"{r.aux_dtype} AuxNets"] if r.aux_dtype else []),
           *([f"AuxNets that start {r.init}"] if r.init else [])]  # fmt: skip
    steps = min((row.steps for row in found.rows if row.step), default=r.steps)  # fewer after Ctrl-C
    return f"{r.model}: K = {r.K}, batch {r.batch}, {', '.join(how)}, {steps} steps of each in turn; {on(machine)}"


def link_headline(one: LinkResults) -> str:
    return (
        f"over links of {one.rate} (measured {8 * one.gigabytes_per_s:.3g} Gb/s, {one.latency_us:.0f} µs), "
        f"one host a rank:"
    )


def link_headers(found: Bench) -> list[str]:
    return ["contender", "step ms (quartiles)", "steps", "× DDP", "of its own without a limit", "ρ",
            f"sent a step by all {found.request.K} ranks", "idle of ranks", "simulated ms"]  # fmt: skip


def link_cells(row: BenchRow, one: LinkResults, found: Bench) -> list[str]:
    name = called(row.name, found.request.K)
    if not row.step:
        return [name, shortened(row.why or "not measured"), *[NO_VALUE] * 7]
    ddp, free = one.row(DDP), found.row(row.name)
    middle, low, high = row.step
    micro = f", M = {row.micro}" if row.micro > 1 else ""
    moved = ", cut for this link" if row.name in one.moved else ""
    predicted = one.simulated.get(row.name)
    return [
        f"{name}{micro}{moved}",
        f"{middle:.1f} ({low:.1f}-{high:.1f})",
        str(row.steps),
        NO_VALUE if ddp is None else f"{ddp.step[0] / middle:.2f}",
        NO_VALUE if free is None else f"{free.step[0] / middle:.2f}",
        NO_VALUE if row.rho is None else f"{row.rho:.2f}",
        size(sum(r["sent"] for r in row.ranks)),
        " / ".join(f"{100 * r['idle']:.0f} %" for r in row.ranks),
        NO_VALUE if predicted is None else f"{predicted:.1f} ({100 * (predicted / middle - 1):+.0f} %)",
    ]


@dataclass(frozen=True)
class Column:
    """A column of the measured table. cell: of a contender that was measured. missing: why nobody has a value in it."""

    header: str
    cell: Callable[[BenchRow, Bench], str]
    missing: str = ""


def ratio(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.2f}"


def name_cell(row: BenchRow, found: Bench) -> str:
    return called(row.name, found.request.K) + (f", M = {row.micro}" if row.micro > 1 else "")


def step_cell(row: BenchRow, found: Bench) -> str:
    middle, low, high = row.step
    return f"{middle:.1f} ({low:.1f}-{high:.1f})"


def sent_cell(row: BenchRow, found: Bench) -> str:
    return NO_VALUE if row.name in (PLAIN, THREADS, LIMIT) else size(sum(r["sent"] for r in row.ranks))


def idle_cell(row: BenchRow, found: Bench) -> str:
    return NO_VALUE if row.name == THREADS else " / ".join(f"{100 * r['idle']:.0f} %" for r in row.ranks)


NOTHING, NO_PLAIN = "nothing was measured", "plain training was not measured"
COLUMNS = (
    Column("contender", name_cell),
    Column("step ms (quartiles)", step_cell),
    Column("ρ", lambda row, found: ratio(row.rho), NO_PLAIN),
    Column("of K", lambda row, found: ratio(None if row.rho is None else row.rho / found.request.K), NO_PLAIN),
    Column("of the limit", lambda row, found: ratio(row.of_limit), "K plain trainings at once were not measured"),
    Column("samples/s", lambda row, found: f"{row.rate:.0f}", NOTHING),
    Column("peak memory of ranks", lambda row, found: " / ".join(size(r["peak"]) for r in row.ranks), NOTHING),
    Column("sent a step", sent_cell, "only contenders that send nothing were measured"),
    Column("idle of ranks", idle_cell, "it is not known of threads"),
)


def cells(row: BenchRow, found: Bench) -> list[str]:
    """The cells of a contender; of one that was not measured its name and the reason."""
    if row.step:
        return [column.cell(row, found) for column in COLUMNS]
    told = [called(row.name, found.request.K), shortened(row.why or "not measured")]
    return told + [NO_VALUE] * (len(COLUMNS) - len(told))


def measured_table(found: Bench) -> tuple[list[str], list[list[str]], list[str]]:
    """Headers and rows without the columns that nobody has a value in, and a reason for each of these."""
    names, lines, empty = without_empty([c.header for c in COLUMNS], [cells(r, found) for r in found.rows])
    return names, lines, [f"no column {c.header!r}: {c.missing}." for c in COLUMNS if c.header in empty and c.missing]


def not_alone(found: Bench) -> list[str]:
    """A sentence where other programs took time from the cores."""
    if found.others <= BUSY:
        return []
    return [
        f"the machine was not alone: other programs took {100 * found.others:.0f} % of its cores' time meanwhile. Stop "
        f"them, or use --patient, and measure again."
    ]


def family(name: str) -> str:
    """What kind of training a contender is; the families of `FAMILIES`."""
    name = base(name)
    if name in (PLAIN, THREADS, LIMIT):
        return "plain"
    if name in (DDP, FSDP):
        return "data parallel"
    if name in TORCH:
        return "torch's pipelines"
    method = get_method(name)
    return "decoupled" if method.aux or method.heads else "exact" if method.exact else "delayed"


def called(name: str, K: int) -> str:
    return {
        PLAIN: "plain, one core",
        THREADS: f"plain, {K} threads",
        LIMIT: f"{K} plain trainings at once: the limit",
        DDP: "DDP",
        f"{DDP}+bf16": "DDP, bf16 hook",
        FSDP: "FSDP",
    }.get(name, f"torch {TORCH[name]}" if name in TORCH else name)


def part_cells(row: BenchRow) -> list[str]:
    found = []
    for part in PARTS:
        times = [r["parts"].get(part, 0.0) for r in row.ranks]
        found.append(" / ".join(f"{t:.1f}" for t in times) if any(t >= 0.05 for t in times) else NO_VALUE)
    return [row.name, *found]


def notes(found: Bench) -> list[str]:
    """How to read the numbers of this request and result."""
    r, machine = found.request, found.machine
    lines = [
        "ρ: plain training's step over the contender's, medians over the whole run; contenders took turns in short "
        "blocks, each on processes of its own, one core and one thread a rank. In brackets the quartiles.",
        "of K: ρ over K. of the limit: ρ over that of K plain trainings at once, one a core: what this machine allows.",
        "peak memory: the most that the process had in a step, without what Python, torch and the compiler take.",
        "sent a step: over all ranks; of DDP and FSDP computed (a ring), of torch's pipelines from the plan, of ours "
        "counted. idle: the share of a rank's time in which its process did nothing.",
        "where the time goes: CPU time, AuxNet with λ and κ, transfer with what communication threads took; wait is "
        "the rest of the time.",
    ]
    if r.K > machine["cores"] and r.device == "cpu":
        lines.append(f"{r.K} ranks shared {machine['cores']} cores: nothing here is as it is on {r.K} cores.")
    if r.hosts:
        lines.append(
            f"the ranks were on {r.hosts} hosts: network namespaces of one machine, joined by virtual links, whose "
            f"rate a token bucket limits in each direction; their delay is the machine's own."
        )
        lines.append(
            "× DDP: DDP's step over the contender's on the same link. simulated: predicted from the plan's costs and "
            "the measured link, and how far off. Where a step takes seconds, few were counted."
        )
    lines += [f"WARNING: {text}" for text in not_alone(found)]
    for row in found.rows:
        if row.tried:
            tried = ", ".join(f"{m}: {ms:.0f} ms" for m, ms in row.tried.items())
            lines.append(f"{row.name}: micro-batches tried before the run, {tried}.")
    return [*lines, *measured_table(found)[2], *(f"{row.name} {row.why}" for row in found.rows if row.why)]
