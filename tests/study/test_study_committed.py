"""The study in the READMEs, its picture too, is that of the records in examples/results/study-small/.

`python -m tests.study.test_study_committed` makes them anew, after

    python -m lpcompile study cifar10-small --data cifar10/ --out examples/results/study-small
    python -m lpcompile study cifar10-small --data cifar10/ --out examples/results/study-small --times
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from lpcompile.draw.figure import svg_file
from lpcompile.draw.markdown import NO_VALUE, markdown
from lpcompile.study.answers import answer_text, answers, over_models, seeds_told, stages
from lpcompile.study.config import load, study_of
from lpcompile.study.page import headline
from lpcompile.study.picture import picture
from lpcompile.study.records import TIMES, read, results
from lpcompile.study.summary import COUNTED, StudyRow, of_one_study, rows_of, table_text
from lpcompile.study.times import SIMULATED
from tests.study.small_study import small_study

ROOT = Path(__file__).resolve().parents[2]
README, FRONT = ROOT / "examples" / "README.md", ROOT / "README.md"
RECORDS = ROOT / "examples" / "results" / "study-small"
PICTURE = RECORDS / "picture.svg"
BEGIN, END = "<!-- study -->\n", "<!-- /study -->\n"
Records = Sequence[Mapping[str, Any]]


def records() -> list[dict[str, Any]]:
    return of_one_study(list(results(RECORDS).values()), RECORDS)


def rows() -> list[StudyRow]:
    return rows_of(records(), read(RECORDS / TIMES))


def narrow(text: str) -> str:
    """Tables without padding."""
    return re.sub(r"-{3,}", "---", re.sub(r" +\|", " |", text))


def missing(found: Records) -> int:
    """Runs of the study that have no record yet."""
    run = found[0]["run"] if found else {"data": "cifar10"}
    return len(
        {spec.key for spec in study_of(load("cifar10-small"), data=run["data"]).runs()} - {r["key"] for r in found}
    )


def about(found: Records) -> str:
    """The setting, and where the numbers come from."""
    run = found[0]["run"]
    steps = f"{run['epochs']} epochs of {run['images']:,} images at {run['size']} px from {run['data']}"
    return f"{steps} (a GPT: text), {found[0].get('tested', NO_VALUE)} test images. {headline(found)}."


def block(found: Records, of: Sequence[StudyRow], left: int = 0) -> str:
    """Which method to take, and all rows; before the last run there is no advice, only rows."""
    if not found:
        return "\n"
    if left:
        said = f"Not finished: {left} of {left + len(found)} runs are left, so nothing is advised from it yet."
        return "".join(f"\n{narrow(part)}\n" for part in (about(found), said, table_text(of))) + "\n"
    where = f"![points over plain training against speedup]({PICTURE.relative_to(README.parent)})"
    parts = [about(found), *([where, answer_text(of)] if answers(of) else []), table_text(of)]
    return "".join(f"\n{narrow(part)}\n" for part in parts) + "\n"


def front(of: Sequence[StudyRow]) -> str:
    """README.md: the picture, and a line for each need with the method of every K."""
    lines: dict[str, dict[int, str]] = {}
    for K, need, entry, points, worst, rho, memory in answers(of):
        text = f"`{entry}` {points}, ρ {rho}" + (f", memory {memory}" if memory != NO_VALUE else "")
        lines.setdefault(need, {})[int(K)] = f"{text}; {worst}"
    if not lines:
        return ""
    heads = ["what matters", *(f"K = {K}" for K in stages(of))]
    table = narrow(markdown(heads, [[need, *(by.get(K, NO_VALUE) for K in stages(of))] for need, by in lines.items()]))
    kinds = {row.kind for row in of}
    unmeasured = " (predicted where there are more stages than cores)" if SIMULATED in kinds else ""
    predicted = " (predicted from FLOPs)" if COUNTED in kinds else unmeasured
    models = ", ".join(dict.fromkeys(row.model for row in of))
    return (
        f"![points over plain training against speedup]({PICTURE.relative_to(ROOT)})\n\n{table}\n\n"
        f"Test accuracy in points over plain training ± deviation over seeds, ρ{predicted}, memory over `gpipe`'s;\n"
        f"means over {models}; last the worst of them; {seeds_told(of)[0]}\n"
    )


def replaced(text: str, made: str) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + made + END + rest.split(END)[1]


def test_the_study_in_the_readmes_is_that_of_the_records() -> None:
    found, of, say = records(), rows(), "run `python -m tests.study.test_study_committed` to show what the records say"
    left = missing(found)
    assert README.read_text() == replaced(README.read_text(), block(found, of, left)), say
    assert FRONT.read_text() == replaced(FRONT.read_text(), "" if left else front(of)), say
    if answers(of) and not left:
        assert PICTURE.read_text() == svg_file(picture(of)), say


def test_the_records_are_runs_of_the_study_and_name_no_folder_of_a_machine() -> None:
    found = records()
    if not found:
        pytest.skip("no records of the study yet")
    run = found[0]["run"]
    study = study_of(load("cifar10-small"), data=run["data"])
    assert {r["key"] for r in found} <= {spec.key for spec in study.runs()}
    for record in (*found, *read(RECORDS / TIMES)):
        assert not re.search(r"/(home|root|tmp|work|Users)/", str(record))
    assert not any(r["commit"].endswith("+") or r.get("crash") for r in found)


def test_a_block_has_the_answers_and_all_rows_and_the_front_a_line_for_each_need() -> None:
    found = small_study()
    of = rows_of(found)
    made = block(found, of)
    assert "2 epochs of 1,280 images" in made and "commit abc" in made and "results/study-small/picture.svg" in made
    assert "| 2 | accuracy (within 0.5 of plain), then speed | stream | -0.2 ± 0.0 |" in made
    assert "| resnet20 | 2 | **stream** | 70.30 ± 0.71 | -0.20 ± 0.00 |" in made
    shown = front(of)
    assert "| memory, up to 2 points | `gpipe` +0.5 ± 0.0, ρ 1.40, memory 1.00; resnet20 +0.5 |" in shown
    assert "ρ (predicted from FLOPs)" in shown and "seeds: 2 at K = 2" in shown
    assert block([], []) == "\n" and front([]) == ""
    assert len(over_models([row for row in of if not row.plain])) == 3
    text = FRONT.read_text()
    assert replaced(replaced(text, shown), "" if missing(records()) else front(rows())) == text
    early = block(found, of, 7)
    assert "Not finished: 7 of" in early and "picture.svg" not in early and "what matters" not in early


def test_the_front_page_has_room_for_the_study() -> None:
    shown = front(rows_of(small_study()))
    with_all_needs = len(shown.splitlines()) + 1  # small_study has no default
    assert len(replaced(FRONT.read_text(), "").splitlines()) + with_all_needs <= 200


if __name__ == "__main__":
    RECORDS.mkdir(exist_ok=True)
    left = missing(records())
    README.write_text(replaced(README.read_text(), block(records(), rows(), left)))
    FRONT.write_text(replaced(FRONT.read_text(), "" if left else front(rows())))
    if answers(rows()) and not left:
        PICTURE.write_text(svg_file(picture(rows())))
