"""The command on digits, and its full scale on a few images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lpcompile.cli.main import main
from lpcompile.errors import UsageError
from lpcompile.paper import run as paper_run
from lpcompile.paper.experiments import ABLATION, ORDER, START, START_ROW, TRAINED_BY, Experiments, _imagenet, keys_of
from lpcompile.paper.formula import formula
from lpcompile.paper.networks import build
from lpcompile.paper.results import results
from lpcompile.paper.run import about, in_order
from lpcompile.paper.scales import FULL, HOURS, MINUTES
from lpcompile.paper.speeds import STEPS, WARM_UP, decoupled
from lpcompile.paper.tables import cells
from lpcompile.paper.train_run import PLAN_OPTIONS, compiled, train_run, trainer_of
from lpcompile.study.data import decode
from lpcompile.study.records import read

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    decode(folder, "digits", 8)
    return folder


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scale `minutes` with smaller images, and runs in this process."""
    small = replace(MINUTES, size=8, images=64, batch=32, evaluated=64, curve=32, ladder=(14, 8))
    monkeypatch.setitem(__import__("lpcompile.paper.scales", fromlist=["SCALES"]).SCALES, "minutes", small)

    def run_all(specs: Any, data: str, folder: Path, jobs: int, run: Any) -> None:
        with (folder / "runs.jsonl").open("a") as file:
            known = {r["key"] for r in read(folder / "runs.jsonl")}
            for spec in specs:
                if spec.key not in known:
                    record = {"key": spec.key, "run": spec.to_json(), "commit": "abc", **run(spec, data, folder)}
                    file.write(json.dumps(record) + "\n")
                    file.flush()

    monkeypatch.setattr(paper_run, "run_all", run_all)


def test_a_table_is_printed_with_the_papers_figures_and_a_sentence(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["paper", "6", "--out", out]) == 0
    told = capsys.readouterr().out
    assert "### Table 6" in told and "| 93.7 " in told and "Not run: K = 3, K = 4." in told
    assert "Here it is open: no row learnt much" in told  # a few steps give what chance does
    assert {path.name for path in Path(out).iterdir()} >= {"runs.jsonl", "tables.md", "paper.html"}
    page = (Path(out) / "paper.html").read_text()
    assert "training loss of the serial model" in page and "violation" in page and "http" not in page
    lines = (Path(out) / "runs.jsonl").read_text()
    records = [json.loads(line) for line in lines.splitlines()]
    assert len(records) == 2 and all("curve" in r and r["curve"][0]["train loss"] > 0 for r in records), records
    assert records[1]["curve"][0]["violation"] is not None and records[1]["aux"][0]["made"].startswith("ResNet up to")
    assert main(["paper", "6", "--out", out]) == 0  # nothing is run again
    assert (Path(out) / "runs.jsonl").read_text() == lines
    assert main(["paper", "6", "--show", "--out", out]) == 0


@pytest.mark.parametrize("method", ["penalty-stored", "plain"])
def test_fixed_views_and_stored_variables_train(digits: Path, method: str) -> None:
    small = replace(MINUTES, size=8, images=32, batch=16, epochs=2, shallow=8, evaluated=16, curve=16)
    row = next(r for r in Experiments(small, "digits").rows("5f") if r.runs[0].entry.method == method)
    record = train_run(row.runs[0], "digits", digits)
    assert "accuracy" in record, record
    assert [point["epoch"] for point in record["curve"]] == [1, 2]


@pytest.mark.parametrize(
    ("key", "name", "epochs"),
    [("5", "ResNet-32, decoupled", 300), ("3", "AL, κ stored, λ by AuxNets", 300), ("9", "AuxNet WRN-16-10", 200),
     ("7", "β = 10⁶", 300), ("8", "DDG", 300)],
)  # fmt: skip
def test_the_full_scale_starts(key: str, name: str, epochs: int, digits: Path) -> None:
    """The paper's own networks and settings, on a handful of images of 8 px."""
    rows = Experiments(FULL, "digits").rows(key)
    spec = next(row.runs[0] for row in rows if name in (row.name, row.printed))
    assert (spec.epochs, spec.network.batch, spec.images, spec.size) == (epochs, 128, 50_000, 32)
    assert spec.network.depth in (110, 40, 32)
    options = {**spec.entry.options, "evaluated": 8, "curve": 8}
    thin = replace(spec.network, batch=8, width=1 if key == "9" else 2)
    few = replace(spec, size=8, images=16, epochs=1, network=thin, entry=replace(spec.entry, options=options))
    record = train_run(few, "digits", digits)
    assert "accuracy" in record, record


def test_every_figure_of_the_paper_has_a_row_or_a_reason() -> None:
    from lpcompile.paper.printed import BY_KEY
    from lpcompile.paper.tables import left_out, text

    for scale in (HOURS, FULL):
        of = Experiments(scale, "cifar10")
        for key in ORDER:
            found = results(key, of.rows(key), {}, {})
            assert left_out(key, found) == "", (scale.name, key)
            assert all(r.why for r in found)
            assert all(r.wanted or r.why in cells(r)[-1] for r in found)  # a command to run instead is not cut off
            assert key not in BY_KEY or "Here it is open: " in text(key, found)


def test_second_seeds_come_last_and_shared_runs_are_done_once() -> None:
    of = Experiments(HOURS, "cifar10")
    rows = [row for key in ("4", "6") for row in of.rows(key)]
    seeds = [run.seed for run in in_order(rows)]
    assert seeds == sorted(seeds) and len(seeds) < sum(len(row.runs) for row in rows)


def test_an_unknown_table_is_refused_with_those_there_are() -> None:
    assert keys_of(["table5", "4"]) == ["4", "5"] and keys_of(["Figure5"]) == ["5f"]
    with pytest.raises(UsageError, match="there is no table '11', only 1, 2, 4, 6, 8"):
        keys_of(["11"])


def test_a_view_is_the_same_whenever_it_is_drawn() -> None:
    from lpcompile.paper.data import batches

    x, y = torch.randint(0, 255, (6, 3, 8, 8), dtype=torch.uint8), torch.arange(6)
    seen: dict[int, torch.Tensor] = {}
    for images, _, index in batches((x, y), 3, 6, 2, seed=0):
        for image, i in zip(images, index.tolist(), strict=True):
            assert torch.equal(seen.setdefault(i, image), image)
    assert len(seen) == 18 and not torch.equal(seen[0], seen[1])
    first = [i for _, _, i in batches((x, y), 1, 6, "random", seed=0)]
    assert len(first) == 1 and sorted(first[0].tolist()) == list(range(6))


def test_tables_1_and_2_come_from_schedules_and_train_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["paper", "1", "table2", "--out", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "Our Method (penalty)" in told and "53 of 56 marks are the paper's; pipedream, backward unlocking" in told
    row = next(line for line in told.splitlines() if line.startswith("| BP (bp) ") and "67%" in line)
    assert "1.00" in row and not (tmp_path / "runs.jsonl").exists()
    assert (tmp_path / "paper.html").read_text().count(">worker 2<") == 8


def test_the_speedup_of_the_paper_is_that_of_its_formula(monkeypatch: pytest.MonkeyPatch) -> None:
    of = Experiments(replace(MINUTES, size=8, width=2), "digits")
    specs = {row.name: row.runs[0] for row in of.rows("8")}
    made = {name: compiled(specs[name], build(specs[name].network, 8, 10)).plan for name in ("penalty + AuxNet", "FR")}
    plan = made["penalty + AuxNet"]
    nets = sum(b.aux.forward + b.aux.backward for b in plan.boundaries if b.aux)
    assert formula(plan) == pytest.approx(1 / (1 / 3 + nets / sum(s.forward + s.backward for s in plan.stages)))
    assert 1 < (formula(plan) or 0) < 3 and formula(made["FR"]) is None


def test_no_row_has_options_that_are_refused() -> None:
    """Rows with init='fresh' were, once a model's start and its AuxNets' had names of their own."""
    of = Experiments(replace(MINUTES, size=8, width=2, ladder=(14, 8), batch=8), "digits")
    seen = set()
    for row in (row for key in ("4", ABLATION) for row in of.rows(key)):
        spec = row.runs[0]
        plan = {name: value for name, value in spec.entry.options.items() if name in (*PLAN_OPTIONS, "auxnet")}
        if spec.K > 1 and str(plan) not in seen:
            seen.add(str(plan))
            program = compiled(spec, build(spec.network, 8, 10))
            trainer_of(replace(spec, images=64), program, 8)
    assert len(seen) > 5


def test_a_row_tells_how_many_of_its_steps_were_exact(digits: Path) -> None:
    small = replace(MINUTES, size=8, images=320, batch=16, ladder=(14, 8), width=2, evaluated=16, curve=16)
    row = next(r for r in Experiments(small, "digits").rows("4") if r.name == "AuxNet ResNet-8")
    record = train_run(row.runs[0], "digits", digits)
    assert record["exact"] == 0.1, record
    found = results("4", [row], {row.runs[0].key: record}, {})[0]
    assert "10% of steps exact" in cells(found)[-1] and cells(found)[-2] == f"{record['formula']:.2f}"


def test_steps_are_timed_without_the_exact_warm_up() -> None:
    """The warm-up of a run of 240 steps is as long as all steps that are timed."""
    of = Experiments(replace(HOURS, size=8, width=2, ladder=(14, 8)), "digits")
    specs = [row.runs[0] for row in of.rows("6") if row.runs[0].K == 2]
    spec = decoupled(specs[0])
    trainer = trainer_of(spec, compiled(spec, build(spec.network, 8, 10)), WARM_UP + STEPS + 1)
    x, y = torch.randn(64, 3, 8, 8), torch.arange(64) % 10
    assert trainer.step(x, y)["method"] == "penalty" and specs[0].entry.options["warmup"] == 24
    fr = of.rows("8")[3].runs[0]
    assert decoupled(fr) == fr


def test_table_9_has_the_papers_own_epochs_and_data() -> None:
    spec = Experiments(FULL, "cifar10").rows("9")[-1].runs[0]
    assert (spec.epochs, spec.data, spec.entry.options["beta"]) == (200, "cifar100", {"0": 1.0, "50.0": 10.0})
    assert Experiments(HOURS, "cifar10").rows("9")[-1].runs[0].epochs == HOURS.epochs


def test_bp_begins_with_the_first_weights_of_a_consistent_start(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = Experiments(replace(MINUTES, size=8, images=32, batch=16, width=2, evaluated=16, curve=16), "digits")
    rows = {row.name: row.runs[0] for row in of.rows("4")}
    begun: dict[str, dict[str, torch.Tensor]] = {}

    def plain(spec: Any, model: torch.nn.Module, *_: Any) -> list[Any]:
        begun[str(spec.entry.options.get("init"))] = {n: t.clone() for n, t in model.state_dict().items()}
        return []

    monkeypatch.setattr("lpcompile.paper.train_run._plain", plain)
    for name in ("BP (ResNet-20)", START):
        assert "accuracy" in train_run(rows[name], "digits", digits)
    decoupled = rows[START_ROW]
    torch.manual_seed(decoupled.seed)
    model = build(decoupled.network, 8, 10)
    compiled(decoupled, model)
    assert all(torch.equal(begun["consistent"][n], t) for n, t in model.state_dict().items())
    assert any(not torch.equal(begun["None"][n], t) for n, t in model.state_dict().items())


def test_heads_are_not_called_auxnets_and_the_last_violation_is_told() -> None:
    of = Experiments(HOURS, "cifar10")
    rows = {row.name: row for row in of.rows("10")}
    aux = [{"share": 0.1, "parameters": 5, "made": "ResNet up to layer1; adapter of 16 to 64 channels"}]
    record = {"accuracy": 20.0, "curve": [{"epoch": 1, "violation": 0.25}], "aux": aux}
    given = {rows[name].runs[0].key: record for name in ("Sync-DGL", "penalty + AuxNet")}
    found = {r.name: cells(r)[-1] for r in results("10", list(rows.values()), given, {})}
    assert found["Sync-DGL"].startswith("heads 10% of a stage")
    assert "AuxNets 10% of a stage; adapter of 16 to 64 channels; violation 0.25" in found["penalty + AuxNet"]


def test_fewer_images_than_the_scale_takes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["paper", "6", "--scale", "hours", "--data", "digits", "--out", out]) == 2
    assert "has 1438 training images, and --scale hours takes 2560; take --scale minutes" in capsys.readouterr().err
    assert not (tmp_path / "out" / "runs.jsonl").exists()


def test_a_device_that_is_not_there_is_refused_before_anything_is_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoupled rows were recorded as failed, and BP as run on a GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for given, said in (("cuda", "rows of 3 stages, with a GPU each, and this machine has 2"), ("gpu", "neither cpu")):
        assert main(["paper", "4", "--device", given, "--out", str(tmp_path / "out")]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main(["paper", "6", "--times", "--device", "cuda", "--out", str(tmp_path / "out")]) == 2


def test_bp_trains_on_the_device_that_is_asked_for(digits: Path) -> None:
    """On the meta device, for want of another: no figure can be read there."""
    of = Experiments(replace(MINUTES, size=8, images=32, batch=16, width=2, evaluated=16, curve=16), "digits", "meta")
    spec = of.rows("4")[0].runs[0]
    assert "meta tensors" in train_run(spec, "digits", digits)["error"]


def test_showing_what_was_never_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "4", "--show", "--out", str(tmp_path / "typo")]) == 2
    assert "typo has no results; run the tables first" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize("column", TRAINED_BY)
def test_the_commands_of_table_10_are_ones_that_train_takes(
    column: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to ImageNet itself, which is not here."""
    monkeypatch.chdir(tmp_path)
    command = _imagenet(column).partition("python -m lpcompile ")[2]
    assert main(command.split()) == 2
    assert "--data imagenet:DIR: there is no such folder" in capsys.readouterr().err


def test_only_runs_of_the_tables_that_are_shown_are_counted(tmp_path: Path) -> None:
    of = Experiments(MINUTES, "digits")
    keys = [row.runs[0].key for key in ("6", "10") for row in of.rows(key)]
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps({"key": key, "commit": "abc"}) + "\n" for key in keys))
    assert " 2 of 2 runs" in about(of, ["6"], tmp_path)
