"""The table of the random configurations in examples/README.md is that of the records beside it.

`python tests/study/test_committed.py` writes it anew, after

    python -m lpcompile study draw:1 --data cifar10/ --count 40 --out examples/results/draw-1
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lpcompile.draw.markdown import markdown
from lpcompile.study.config import PLAIN
from lpcompile.study.random_runs import DEFAULT, draw, verdict
from lpcompile.study.records import RUNS, read

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "examples" / "README.md"
RECORDS = ROOT / "examples" / "results" / "draw-1"
BEGIN, END = "<!-- draw -->\n", "<!-- /draw -->\n"
HEADERS = ["", "model", "trained by", "batch", "K", "plain", "default", "AuxNet method", "its accuracy", "it says"]


def configurations() -> list[dict[str, Mapping[str, Any]]]:
    """The records of each configuration that is complete: plain, default, and the AuxNet method as ""."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for record in read(RECORDS / RUNS):
        entry = record["run"]["entry"]["name"]
        found.setdefault(record["run"]["network"]["name"], {})[entry if entry in (PLAIN, DEFAULT.name) else ""] = record
    return [records for records in found.values() if len(records) == 3]


def row(number: int, of: Mapping[str, Mapping[str, Any]]) -> list[str]:
    network, aux = of[PLAIN]["run"]["network"], of[""]
    plain = of[PLAIN]["accuracy"]
    said = "; ".join(re.sub(r"^step \d+: ", "", text) for text in aux["said"]) or aux.get("error", "")
    return [
        str(number), f"{network['family']}-{network['depth']}, width {network['width']}",
        f"{network['optimizer']} {network['lr']:g}" + (", bf16" if network["dtype"] != "fp32" else ""),
        str(network["batch"]), str(of[DEFAULT.name]["run"]["K"]), f"{plain:.1f}", shown(of[DEFAULT.name], plain),
        aux["run"]["entry"]["method"] + (", consistent start" if aux["run"]["entry"]["options"] else ""),
        shown(aux, plain), said.partition(";")[0].partition(",")[0],
    ]  # fmt: skip


def shown(record: Mapping[str, Any], plain: float) -> str:
    return f"{record['accuracy']:.1f} ({record['accuracy'] - plain:+.1f})" if "accuracy" in record else "stopped"


def block() -> str:
    found = configurations()
    records = [record for of in found for record in of.values()]
    gaps = [of[DEFAULT.name]["accuracy"] - of[PLAIN]["accuracy"] for of in found]
    commits = ", ".join(sorted({r["commit"] for r in records}))
    about = (
        f"{len(found)} configurations, commit {commits}, {records[0]['machine']}, {records[0]['date']}; accuracy on "
        f"10,000 test images in percent, in brackets the points above plain training. The default is between "
        f"{min(gaps):+.2f} and {max(gaps):+.2f} points of plain training, {sum(gaps) / len(gaps):+.2f} in the mean; "
        f"defects found: {'; '.join(verdict(records)) or 'none'}."
    )
    narrow = re.sub(r"-{3,}", "---", re.sub(r" +\|", " |", markdown(HEADERS, [row(*r) for r in enumerate(found)])))
    return f"\n{about}\n\n{narrow}\n\n"


def test_the_table_in_the_readme_is_that_of_the_records() -> None:
    written = README.read_text().split(BEGIN)[1].split(END)[0]
    assert written == block(), "run `python tests/study/test_committed.py` to show what the records say now"


def test_the_records_are_runs_of_the_draw_and_name_no_folder_of_a_machine() -> None:
    records = read(RECORDS / RUNS)
    of = records[0]["run"]
    drawn = draw(1, 40, "cifar10/", of["size"], of["images"], of["validation"], of["epochs"])
    assert {r["key"] for r in records} <= {spec.key for spec in drawn}
    assert not re.search(r"/(home|root|tmp|work|Users)/", (RECORDS / RUNS).read_text())
    assert not any(r["commit"].endswith("+") or r.get("crash") for r in records)


if __name__ == "__main__":
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + block() + END + rest.split(END)[1])
