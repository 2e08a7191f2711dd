"""Steps that carry accuracy: the time in which every contender trains a model to a given test accuracy.

Contenders train one after another, from the same first weights on the same batches of a data set, each on new
processes with its own stages and number of micro-batches. K independent trainings are left out: they are plain ones.
"""

from __future__ import annotations

from collections.abc import Callable

from lpcompile.bench.contenders.ways import LIMIT, PLAIN, TORCH, base, planned_as
from lpcompile.bench.contenders.work import WorkSpec
from lpcompile.bench.plans import plans_of
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.bench.team import Team
from lpcompile.core.plan import Plan
from lpcompile.draw.markdown import NO_VALUE
from lpcompile.errors import LpError
from lpcompile.runtime.methods import METHODS
from lpcompile.training.measures import reason

HEADERS = ["contender", "seconds", "plain's over them", "steps", "ms a step", "best accuracy"]


def to_accuracy(found: Bench, tell: Callable[[str], None]) -> None:
    """Fill in the curves of all rows. One that fails does not stop the others."""
    request = found.request
    spec = request.work_on_data
    rows = [row for row in found.rows if row.name != LIMIT]
    needed = tuple(dict.fromkeys(planned_as(r.name) for r in rows if base(r.name) in (*TORCH, *METHODS)))
    tell(f"planning {request.model} on {request.data}")
    planned = plans_of(spec, needed, request.cost, request.timeout, {})
    for number, row in enumerate(rows, start=1):
        label = f"[{number}/{len(rows)}] {row.name} to {request.to_accuracy:g} on {request.data}"
        try:
            why = planned.refused.get(planned_as(row.name))
            if not why:
                row.curve = _trained(found, row, spec, planned.plans.get(planned_as(row.name)))
                steps, seconds, accuracy = row.reached
                tell(f"{label}: {accuracy:.3f} after {steps:.0f} steps, {seconds:.1f} s")
            row.why = row.why or why or ""
        except LpError as error:
            row.why = row.why or reason(error)
            tell(f"{label}: {row.why.splitlines()[0]}")


def _trained(found: Bench, row: BenchRow, spec: WorkSpec, plan: Plan | None) -> list[list[float]]:
    team = Team(row.name, spec, plan, found.request.timeout)
    try:
        micro = team.answers()[0]["micro"]
        if row.tried and row.micro != micro:
            team.ask("use", row.micro)
        return list(team.ask("train", (found.request.to_accuracy, found.request.epochs))[0]["curve"])
    finally:
        team.end()


def accuracy_title(found: Bench) -> str:
    r = found.request
    return (
        f"training to a test accuracy of {r.to_accuracy:g} on {r.data}, looked at after each of at most {r.epochs} "
        f"passes; {r.optimizer} with a constant learning rate of {r.learning_rate:g}, one seed:"
    )


def accuracy_cells(row: BenchRow, found: Bench, name: str) -> list[str]:
    """A row of its table: without seconds where the accuracy was not reached."""
    target, plain = found.request.to_accuracy or 0.0, found.trained(PLAIN)
    steps, seconds, accuracy = row.reached
    ratio = NO_VALUE
    if plain is not None and min(accuracy, plain.reached[2]) >= target:
        ratio = f"{plain.reached[1] / seconds:.2f}"
    return [
        name,
        f"{seconds:.1f}" if accuracy >= target else NO_VALUE,
        ratio,
        f"{steps:.0f}",
        f"{1e3 * seconds / steps:.1f}",
        f"{max(a for _, _, a in row.curve):.3f}",
    ]
