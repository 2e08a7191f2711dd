"""The command `study`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lpcompile.cli.flags import Parser, count, refuse_unread
from lpcompile.core.system.atomic_file import write_text
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from lpcompile.study.config import RunSpec, Study

DRAW = "draw:"  # before a seed: configurations at random
FILES = {"table": "table.md", "page": "study.html", "picture": "picture.svg"}


def add_arguments(parser: Parser) -> None:
    """Flags in the order of the help: what to run, how, and what to show."""
    parser.description = (
        "Train models x methods x K x seeds, each run on one core, beside plain training; print test accuracy, speedup "
        "and which method to take, and write a table, a page and a picture. Runs that are in --out are not repeated: "
        "start the same command again to go on."
    )
    add = parser.flag
    parser.add_argument("config", metavar="CONFIG", help="a .json or .toml file, one of smoke, cifar10-small, cifar10, "
        "cifar10-long, late, or draw:SEED for configurations at random")  # fmt: skip
    add("data", help="digits, cifar10, or a folder of images (train/CLASS/..., test/CLASS/...) (default: the study's)")
    add("out", metavar="DIR", default="study", help="where results are kept (default study/)")
    add("seeds", type=count, help="runs of each, with seeds 0, 1, ... (default: the study's)")
    add("jobs", type=count, default=1, help="runs at the same time, one core each (default 1)")
    add("networks", metavar="A,B", help="only these models of the study")
    add("methods", metavar="A,B", help="only these methods of the study, by name")
    add("K", type=str, metavar="2,4", help="numbers of stages (default: the study's)")
    add("epochs", type=count, help="passes over the training images (default: the study's; draw: 5)")
    add("images", type=count, help="training images (default: the study's; draw: 10000)")
    add("size", type=count, metavar="PX", help="height and width of the images (default: the study's; draw: 16)")
    add("validation", type=count, help="training images held out of training (default: the study's; draw: 5000)")
    add("count", type=count, help="of draw: how many configurations (default 10)")
    add("times", action="store_true", help="measure the step of every method instead of training; leave the machine "
        "alone meanwhile")  # fmt: skip
    add("table", action="store_true", help="train nothing: table, page and picture from what is in --out")


def run(arguments: argparse.Namespace) -> int:
    from lpcompile.study import records
    from lpcompile.study.data import check_count, decode
    from lpcompile.study.pool import run_all
    from lpcompile.study.random_runs import verdict
    from lpcompile.study.summary import of_one_study
    from lpcompile.study.times import time_all

    out = Path(arguments.out)
    if arguments.times and arguments.table:
        raise UsageError("--times measures and --table only shows; give one of them")
    if arguments.table:
        refuse_unread(arguments, "--table", reads=("table", "out"))
    if arguments.times:  # of every model, method and K, one after another
        refuse_unread(arguments, "--times", unread=("jobs", "seeds", "epochs", "images", "validation"))
    study: Study | None = None
    if arguments.config.startswith(DRAW):
        data, specs = _drawn(arguments)
    else:
        study = _study(arguments)
        data = study.data
        specs = _chosen_before(study, out)
    if arguments.table:
        known = list(records.results(out).values())
        if not known:
            raise UsageError(f"{out} has no results; run the study first, or give its --out")
        return _show(of_one_study(known, out), out)
    with records.locked(out):
        if arguments.times:
            _refuse_untuned(specs)
            time_all(specs, out)
            return _show(of_one_study(list(records.results(out).values()), out), out)
        if not all(spec.network.text for spec in specs):
            one = specs[0]  # all have the same data
            decode(out, data, one.size)
            check_count(out, data, one.size, one.images, one.validation)
        if study is not None:
            specs = _tuned(study, data, out, arguments.jobs)
        found = run_all(specs, data, out, arguments.jobs)
    code = _show(found, out)
    if study is None and (defects := verdict(found)):
        print("\n" + "\n".join(defects))
        return 1
    return code


def _study(arguments: argparse.Namespace) -> Study:
    from lpcompile.study.config import load, study_of

    if "count" in arguments.typed:
        raise UsageError("--count has no effect without draw:SEED; leave it out")
    given = {name: getattr(arguments, name) for name in ("data", "seeds", "epochs", "images", "size", "validation")}
    table = load(arguments.config)
    for flag, name in (("networks", "models"), ("methods", "methods")):
        if getattr(arguments, flag) is not None:
            table[name] = _only(table, name, flag, getattr(arguments, flag))
    K = None if arguments.K is None else [int(k) if k.isdecimal() else k for k in arguments.K.split(",")]
    return study_of(table, **given, K=K)


def _only(table: dict[str, list[object]], name: str, flag: str, asked: str) -> list[object]:
    """The entries of a list with these names."""

    def name_of(one: object) -> str:
        return str(one.get("name", one.get("method"))) if isinstance(one, dict) else str(one)

    known = {name_of(one): one for one in table.get(name, [])}
    names = [part.strip() for part in asked.split(",")]
    for one in names:
        if one not in known:
            raise UsageError(f"--{flag} {one}: the study has {', '.join(known)}")
    return [known[one] for one in names]


def _drawn(arguments: argparse.Namespace) -> tuple[str, list[RunSpec]]:
    from lpcompile.study.data import data_name
    from lpcompile.study.random_runs import draw

    for name in ("seeds", "networks", "methods", "K"):
        if name in arguments.typed:
            raise UsageError(f"--{name} has no effect with draw:SEED, which draws them; leave it out")
    seed = arguments.config.removeprefix(DRAW)
    if not seed.isdecimal():
        raise UsageError(f"{arguments.config}: write draw:SEED with a number, such as draw:0")
    data = arguments.data or "cifar10"
    runs = draw(int(seed), arguments.count or 10, data_name(data), arguments.size or 16, arguments.images or 10_000,
                arguments.validation or 5_000, arguments.epochs or 5)  # fmt: skip
    return data, list(runs)


def _chosen_before(study: Study, out: Path) -> list[RunSpec]:
    """The runs of a study, with tuned options where records say which were chosen."""
    from lpcompile.study import records
    from lpcompile.study.config import tuned

    known = records.results(out)
    return list(study.runs(tuned([known[c.key] for c in study.candidates() if c.key in known])))


def _refuse_untuned(specs: list[RunSpec]) -> None:
    for spec in specs:
        for name, value in spec.entry.options.items():
            if isinstance(value, list):
                raise UsageError(
                    f"--times: {name} of {spec.entry.name} is tuned by accuracy, and nothing is chosen yet for "
                    f"{spec.network.name} at K = {spec.K}; run the study without --times first"
                )


def _tuned(study: Study, data: str, out: Path, jobs: int) -> list[RunSpec]:
    """The runs of a study, after those that choose its options on validation data."""
    from lpcompile.study.config import tuned
    from lpcompile.study.pool import run_all

    candidates = list(study.candidates())
    if not candidates:
        return list(study.runs())
    chosen = tuned(run_all(candidates, data, out, jobs))
    for (model, method, K), options in chosen.items():
        print(f"{model} {method} K={K}: {options} by validation accuracy", file=sys.stderr, flush=True)
    return [run.first_values() for run in study.runs(chosen)]


def _show(found: list[dict[str, object]], out: Path) -> int:
    """Print and write what is known; 1 if a run failed."""
    from lpcompile.draw.figure import svg_file
    from lpcompile.study import records
    from lpcompile.study.answers import answer_text
    from lpcompile.study.page import page
    from lpcompile.study.picture import picture
    from lpcompile.study.summary import rows_of, table_text

    if not found:
        return 0
    rows = rows_of(found, records.read(out / records.TIMES))
    parts = [table_text(rows)]
    if any(row.gap is not None for row in rows):
        parts.insert(0, answer_text(rows))
    text = "\n\n".join(parts)
    print(text, flush=True)
    write_text(out / FILES["table"], text + "\n")
    write_text(out / FILES["page"], page(rows, found))
    if any(row.gap is not None and row.rho for row in rows):
        write_text(out / FILES["picture"], svg_file(picture(rows)))
    print(f"written to {', '.join(str(out / name) for name in FILES.values())}", file=sys.stderr)
    return 1 if any("error" in record for record in found) else 0
