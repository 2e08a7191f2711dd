"""The paper's tables in examples/README.md are those of the records beside it.

`python tests/paper/test_committed.py` writes them anew, after

    python -m lpcompile paper --scale hours --data cifar10/ --out examples/results/paper-hours
"""

from __future__ import annotations

import re
from pathlib import Path

from lpcompile.draw.markdown import markdown
from lpcompile.paper import schedules
from lpcompile.paper.experiments import ORDER, Experiments
from lpcompile.paper.printed import DERIVED
from lpcompile.paper.run import about, in_order, tables_of
from lpcompile.paper.scales import HOURS
from lpcompile.paper.tables import LEGEND, summary, text
from lpcompile.study.records import RUNS, read

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "examples" / "README.md"
RECORDS = ROOT / "examples" / "results" / "paper-hours"
BEGIN, END = "<!-- paper -->\n", "<!-- /paper -->\n"
OF = Experiments(HOURS, "cifar10/")


def block() -> str:
    """All tables, what holds of them first, in tables without padding."""
    tables, derived = tables_of(OF, ORDER, RECORDS), schedules.scheduled()
    parts = [about(OF, ORDER, RECORDS), markdown(*summary(tables)), LEGEND]
    parts += [text(key, found) for key, found in tables.items()]
    parts += [schedules.text(key, derived) for key in DERIVED]
    narrow = re.sub(r"-{3,}", "---", re.sub(r" +\|", " |", "\n\n".join(parts)))
    return f"\n{narrow}\n\n"


def test_the_tables_in_the_readme_are_those_of_the_records() -> None:
    shown = README.read_text().split(BEGIN)[1].split(END)[0]
    assert shown == block(), "run `python tests/paper/test_committed.py` to show what the records say now"


def test_the_records_are_runs_of_the_tables_and_name_no_folder_of_a_machine() -> None:
    rows = [row for key in ORDER for row in OF.rows(key)]
    records = read(RECORDS / RUNS)
    assert records and {r["key"] for r in records} <= {run.key for run in in_order(rows)}
    written = (RECORDS / RUNS).read_text()
    assert not re.search(r"/(home|root|tmp|work|Users)/", written) and len(written) < 1_000_000
    assert not any(r["commit"].endswith("+") or r.get("crash") for r in records)


if __name__ == "__main__":
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + block() + END + rest.split(END)[1])
