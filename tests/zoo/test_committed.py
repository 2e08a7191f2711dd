"""The table of strangers in examples/README.md is that of the rows beside it.

`python tests/zoo/test_committed.py` writes it anew, after

    python -m lpcompile zoo strangers --output examples/results/strangers/rows.jsonl
"""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from lpcompile.draw.markdown import markdown

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "examples" / "README.md"
RECORDS = ROOT / "examples" / "results" / "strangers"
BEGIN, END = "<!-- strangers -->\n", "<!-- /strangers -->\n"
HEADERS = ["library", "models", "exact at K = 4", "exact, fewer stages", "refused", "emitted and loaded bitwise",
           "max/mean < 1.25", "CPU s to compile"]  # fmt: skip


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RECORDS / "rows.jsonl").read_text().splitlines()]


def line(name: str, of: list[dict[str, Any]]) -> list[str]:
    exact = [r for r in of if r["status"] == "exact"]
    seconds = [r["cpu_seconds"] for r in of if "cpu_seconds" in r]
    return [
        name, str(len(of)), str(sum(not r.get("fewer") for r in exact)), str(sum(bool(r.get("fewer")) for r in exact)),
        str(sum(r["status"] == "refused" for r in of)), str(sum(r.get("emit") == "exact" for r in of)),
        str(sum(r.get("imbalance", 9) < 1.25 for r in exact)),
        f"{statistics.median(seconds):.1f}" if seconds else "",
    ]  # fmt: skip


def block() -> str:
    found, about = rows(), json.loads((RECORDS / "about.json").read_text())
    libraries: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        libraries.setdefault(row["name"].partition(":")[2].partition("/")[0], []).append(row)
    bad = [r for r in found if r["status"] not in ("exact", "refused")]
    seconds = sorted((r["cpu_seconds"], r["name"]) for r in found if "cpu_seconds" in r)
    table = [line(name, of) for name, of in sorted(libraries.items())]
    said = [
        f"{len(found)} models of {len(libraries) - 1} libraries and of `repositories`, our own descriptions, "
        f"commit {about['commit']}, {about['machine']}, torch "
        f"{about['torch']}, {about['date']}; wrong or crashed: {', '.join(r['name'] for r in bad) or 'none'}. The "
        f"slowest to compile: {', '.join(f'{name.partition(chr(58))[2]} {s:.1f} s' for s, name in seconds[:-4:-1])}.",
        re.sub(r"-{3,}", "---", re.sub(r" +\|", " |", markdown(HEADERS, [line("all", found), *table]))),
    ]
    why = [f"- `{r['name'].partition(':')[2]}`: {(r.get('why') or r['fewer']).partition('. ')[0].partition(chr(10))[0]}"
           for r in found if r["status"] != "exact" or r.get("fewer")]  # fmt: skip
    return "\n" + "\n\n".join([*said, "\n".join(why)]) + "\n\n"


def test_the_table_in_the_readme_is_that_of_the_rows() -> None:
    shown = README.read_text().split(BEGIN)[1].split(END)[0]
    assert shown == block(), "run `python tests/zoo/test_committed.py` to show what the rows say now"


def test_the_rows_are_of_models_of_the_zoo_and_name_no_folder_of_a_machine() -> None:
    from lpcompile.zoo import zoo

    assert {r["name"] for r in rows()} == {entry.name for entry in zoo("strangers")}
    assert not re.search(r"/(home|root|tmp|work|Users)/", (RECORDS / "rows.jsonl").read_text())


if __name__ == "__main__":
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + block() + END + rest.split(END)[1])
