"""The tables of step times in the READMEs are those of the records in examples/results/bench/.

`python -m tests.bench.test_committed` writes them anew, after runs such as these at the root of a clean clone:

    python -m lpcompile bench resnet110 --patient --json examples/results/bench/resnet110.json
    python -m lpcompile bench resnet110 --patient --hosts 2 --json examples/results/bench/resnet110-hosts.json

MODEL.json is a bench on one host, MODEL-hosts.json one over links, and others (MODEL-compile.json) have tables alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lpcompile.bench import gate
from lpcompile.bench.contenders.ways import TORCH
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.bench.table import not_alone, tables
from lpcompile.draw.markdown import NO_VALUE, markdown
from lpcompile.errors import UsageError
from tests.bench.small_bench import over_a_link, small_bench

ROOT = Path(__file__).resolve().parents[2]
README, FRONT = ROOT / "examples" / "README.md", ROOT / "README.md"
RECORDS = ROOT / "examples" / "results" / "bench"
TARGETS = ROOT / "examples" / "bench_targets.json"
BEGIN, END = "<!-- bench -->\n", "<!-- /bench -->\n"
TITLES = {"resnet110": "ResNet-110", "wide_resnet16_4": "WideResNet-16-4", "vit_s16_96": "ViT-S/16 96 px",
          "gpt_30m": "GPT, 31 M"}  # fmt: skip
OURS = ("zbh2", "stream", "penalty")
FRONT_ROWS = {"plain": "plain, one core", "limit": "two plain trainings at once: the limit", "ddp": "DDP",
              "torch": "torch's best pipeline", **{m: f"`{m}`" for m in OURS}}  # fmt: skip
FRONT_RATES = ("1gbit", "100mbit", "25mbit")
FORMS = ("stream", "stream+slack", "stream+int8", "stream+int8+slack")
Records = Mapping[str, Bench]


def records() -> dict[str, Bench]:
    return {file.stem: Bench.from_json(json.loads(file.read_text())) for file in sorted(RECORDS.glob("*.json"))}


def narrow(text: str) -> str:
    """Tables without padding."""
    return re.sub(r"-{3,}", "---", re.sub(r" +\|", " |", text))


def block(of: Records) -> str:
    """Every record: its command, commit and machine, its tables, and which targets it reaches."""
    head = "Records, each with its machine, commit and command, and the targets that it reaches:"
    every = [narrow(one) for found in of.values() for one in (*tables(found), *judged(found))]
    return "".join(f"\n{one}\n" for one in ([head] if every else []) + every) + "\n"


def judged(found: Bench) -> list[str]:
    """Warnings, and the targets of a record without options that change the arithmetic."""
    r = found.request
    told = [f"WARNING: {text}" for text in not_alone(found)]
    if r.compile or r.channels_last or r.aux_dtype or r.transfer:
        return told
    try:
        rules = gate.load(TARGETS, r.model, r.rate)
    except UsageError:  # none for this model, or these links
        return told
    held = [one for one in gate.judge(found, rules) if one.found is not None]
    return [*told, gate.gate_text(held)] if held else told


def best(found: Bench, name: str) -> BenchRow | None:
    """A contender's row; of "torch" that of the fastest of torch's pipelines."""
    rows = [row for n in (TORCH if name == "torch" else (name,)) if (row := found.row(n)) is not None]
    return min(rows, key=lambda row: row.step[0], default=None)


def front(of: Records) -> str:
    """The table of README.md: ms of a step and ρ on one machine, then what links make of it."""
    models = [model for model in TITLES if model in of or f"{model}-hosts" in of]
    lines = [[title, *(own_cell(of.get(model), name) for model in models)] for name, title in FRONT_ROWS.items()]
    for rate in FRONT_RATES:
        for names in (("ddp",), ("zbh2",), FORMS):
            cells = [link_cell(of.get(f"{model}-hosts"), names, rate) for model in models]
            lines.append([f"{FRONT_ROWS[names[0]]} over {rate}", *cells])
    lines = [line for line in lines if any(cell != NO_VALUE for cell in line[1:])]
    heads = [TITLES[m] + f", batch {(of.get(m) or of[f'{m}-hosts']).request.batch}" for m in models]
    return narrow(markdown(["contender", *heads], lines)) + "\n"


def own_cell(found: Bench | None, name: str) -> str:
    row = best(found, name) if found is not None else None
    return NO_VALUE if row is None else f"{row.step[0]:.1f} ({row.rho or 0:.2f})"


def link_cell(found: Bench | None, names: Sequence[str], rate: str) -> str:
    """ms of a step of the fastest of these, its options, and how many times as fast as DDP over the same link."""
    place = next((one for one in found.links if one.rate == rate), None) if found is not None else None
    rows = [row for name in names if place is not None and (row := place.row(name)) is not None]
    if not rows or place is None:
        return NO_VALUE
    row, ddp = min(rows, key=lambda row: row.step[0]), place.row("ddp")
    faster = f"{ddp.step[0] / row.step[0]:.1f} × DDP" if ddp is not None and row is not ddp else ""
    more = ", ".join(filter(None, (faster, *row.name.split("+")[1:])))
    return f"{row.step[0]:.0f}" + (f" ({more})" if more else "")


def front_replaced(text: str, made: str) -> str:
    """README.md with another table of contenders."""
    return re.sub(r"^\| contender \|.*?\n(?!\|)", lambda _: made, text, count=1, flags=re.DOTALL | re.MULTILINE)


def test_the_tables_in_the_readmes_are_those_of_the_records() -> None:
    of, say = records(), "run `python -m tests.bench.test_committed` to show what the records say now"
    assert README.read_text().split(BEGIN)[1].split(END)[0] == block(of), say
    if all(model in of for model in list(TITLES)[:3]):
        assert front(of) in FRONT.read_text(), say


def test_the_records_are_of_clean_commits_and_name_no_folder_of_a_machine() -> None:
    for name, found in records().items():
        assert not re.search(r"/(home|root|tmp|work|Users)/", (RECORDS / f"{name}.json").read_text()), name
        assert found.machine["commit"] and not found.machine["commit"].endswith("+"), name
        assert found.machine["command"].startswith("python -m lpcompile bench "), name
        assert name.partition("-")[0] == found.request.model and name.endswith("-hosts") == bool(found.links), name


def some_records() -> dict[str, Bench]:
    """Two models on one machine, the second one over a link as well."""
    found = {
        "resnet110": small_bench(ddp=1.8, stream=1.9),
        "vit_s16_96": small_bench(zbh2=1.8, **{"torch-zb": 1.5, "torch-1f1b": 1.4}),
        "vit_s16_96-hosts": over_a_link(),
    }
    for name, one in found.items():
        one.request = replace(one.request, model=name.partition("-")[0])
    found["vit_s16_96-hosts"].links[0].rows.append(BenchRow("stream+int8+slack", step=[50.0, 50.0, 50.0], steps=3))
    return found


def test_a_block_has_the_tables_of_every_record_and_the_targets_that_were_measured() -> None:
    assert block({}) == "\n"
    found = some_records()
    found["resnet110"].others = 0.4
    made = block(found)
    assert "resnet110: K = 2" in made and "WARNING: the machine was not alone: other programs took 40 %" in made
    assert "| rho of zbh2 over torch-zb >= 1.1 | 1.200 | holds |" in made
    assert "| rho of stream over ddp, 25mbit, >=" not in made and "over links of 25mbit" in made
    assert "| rho of penalty" not in made  # was not measured
    for one in found.values():
        one.request = replace(one.request, compile=True)
    assert "rho of zbh2" not in block(found)


def test_the_front_table_has_a_row_for_each_contender_and_link() -> None:
    made = front(some_records())
    rows = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in made.splitlines()}
    assert next(iter(rows)) == "contender" and rows["contender"] == ["ResNet-110, batch 64", "ViT-S/16 96 px, batch 64"]
    assert rows["DDP"] == ["55.6 (1.80)", "–"] and rows["torch's best pipeline"] == ["–", "66.7 (1.50)"]
    assert rows["DDP over 25mbit"] == ["–", "2000"] and "DDP over 1gbit" not in rows
    assert rows["`stream` over 25mbit"] == ["–", "50 (40.0 × DDP, int8, slack)"] and "`penalty`" not in rows
    readme = FRONT.read_text()
    replaced = front_replaced(readme, made)
    assert made in replaced and front_replaced(replaced, made) == replaced
    assert [li for li in replaced.splitlines() if not li.startswith("|")] == [
        li for li in readme.splitlines() if not li.startswith("|")
    ]


if __name__ == "__main__":
    before, rest = README.read_text().split(BEGIN)
    README.write_text(before + BEGIN + block(records()) + END + rest.split(END)[1])
    if all(model in records() for model in list(TITLES)[:3]):
        FRONT.write_text(front_replaced(FRONT.read_text(), front(records())))
