"""A bench as Markdown tables, with notes on how to read them."""

from __future__ import annotations

from lpcompile.bench.contenders import DDP, FSDP, LIMIT, PLAIN, THREADS, TORCH
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.core.tables import size
from lpcompile.draw.markdown import NO_VALUE, markdown, shortened

PARTS = ("forward", "backward", "aux", "optimizer", "transfer", "python", "wait")
SHOWN = {"aux": "AuxNet", "python": "Python"}


def text(found: Bench) -> str:
    """The tables and notes of all that has been measured so far."""
    measured = [r for r in found.rows if r.step]
    if not measured:
        return "\n".join(["nothing has been measured", *(f"- {row.name} {row.why}" for row in found.rows if row.why)])
    parts = [headline(found), markdown(headers(), [cells(r, found) for r in found.rows])]
    parts.append("where the time of a step goes, ms of every rank:")
    parts.append(markdown(["contender", *(SHOWN.get(p, p) for p in PARTS)], [part_cells(r) for r in measured]))
    if found.start:
        parts.append("before and between steps, seconds:")
        parts.append(markdown(list(found.start), [[f"{s:.2f}" for s in found.start.values()]]))
    if found.scaling:
        methods = [m for m in found.scaling[-1] if m != "K"] or [m for m in found.scaling[0] if m != "K"]
        lines = [[str(s["K"]), *(f"{s[m]:.2f}" if m in s else NO_VALUE for m in methods)] for s in found.scaling]
        costs = "measured costs" if found.request.cost == "measured" else "FLOPs, which are not this machine's times,"
        parts.append(f"ρ for more stages, simulated from {costs} on a machine like this with K cores; the limit is K:")
        parts.append(markdown(["K", *methods], lines))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes(found))])


def headline(found: Bench) -> str:
    r, machine = found.request, found.machine
    how = [r.optimizer, *(["channels last"] if r.channels_last else []), *(["compiled"] if r.compile else []),
           *([f"{r.transfer} transfers"] if r.transfer else []),
           *([f"{r.aux_dtype} AuxNets"] if r.aux_dtype else []),
           *([f"AuxNets that start {r.init}"] if r.init else [])]  # fmt: skip
    steps = min((row.steps for row in found.rows if row.step), default=r.steps)  # fewer after Ctrl-C
    return (
        f"{r.model}: K = {r.K}, batch {r.batch}, {', '.join(how)}, {steps} steps of each in turn; "
        f"torch {machine['torch']}, {machine['cores']} cores, {machine['date']}"
    )


def headers() -> list[str]:
    return ["contender", "step ms (quartiles)", "ρ", "of K", "of the limit", "samples/s", "peak memory of ranks",
            "sent a step", "idle of ranks"]  # fmt: skip


def called(name: str, K: int) -> str:
    return {
        PLAIN: "plain, one core",
        THREADS: f"plain, {K} threads",
        LIMIT: f"{K} plain trainings at once: the limit",
        DDP: "DDP",
        FSDP: "FSDP",
    }.get(name, f"torch {TORCH[name]}" if name in TORCH else name)


def cells(row: BenchRow, found: Bench) -> list[str]:
    name = called(row.name, found.request.K)
    if not row.step:
        return [name, shortened(row.why or "not measured"), *[NO_VALUE] * 7]
    alone = row.name in (PLAIN, THREADS, LIMIT)
    micro = f", M = {row.micro}" if row.micro > 1 else ""
    middle, low, high = row.step
    return [
        name + micro,
        f"{middle:.1f} ({low:.1f}-{high:.1f})",
        NO_VALUE if row.rho is None else f"{row.rho:.2f}",
        NO_VALUE if row.rho is None else f"{row.rho / found.request.K:.2f}",
        NO_VALUE if row.of_limit is None else f"{row.of_limit:.2f}",
        f"{row.rate:.0f}",
        " / ".join(size(r["peak"]) for r in row.ranks),
        NO_VALUE if alone else size(sum(r["sent"] for r in row.ranks)),
        NO_VALUE if row.name == THREADS else " / ".join(f"{100 * r['idle']:.0f} %" for r in row.ranks),
    ]


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
    for row in found.rows:
        if row.tried:
            tried = ", ".join(f"{m}: {ms:.0f} ms" for m, ms in row.tried.items())
            lines.append(f"{row.name}: micro-batches tried before the run, {tried}.")
    return lines + [f"{row.name} {row.why}" for row in found.rows if row.why]
