"""The command on digits: what is done is kept, what is left is run, and what failed is said."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from lpcompile.cli.main import main
from lpcompile.runtime.engine.trainer import Trainer
from lpcompile.study import pool
from lpcompile.study.data import decode
from lpcompile.study.networks import Network, build
from lpcompile.study.records import read
from lpcompile.study.times import simulate_step, time_all, time_rank, with_auxnets
from lpcompile.study.train_run import compiled, simulated, train_run
from tests.study.small_study import spec

pytest.importorskip("sklearn")
TINY = Network("tiny", "resnet", 4, 8, batch=32)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A folder with decoded digits, as the command makes it."""
    folder = tmp_path_factory.mktemp("study")
    decode(folder, "digits", 8)
    return folder


def tiny(method="plain", K=1, **options):
    return replace(spec(method, K, **options), network=TINY, images=128, epochs=2, size=8)


@pytest.fixture
def config(tmp_path):
    table = {"data": "digits", "size": 8, "images": 64, "validation": 64, "epochs": 1, "seeds": 1, "K": [2],
             "models": [{"name": "tiny", "family": "resnet", "width": 4, "depth": 8, "batch": 32}],
             "methods": ["plain", "dgl"]}  # fmt: skip
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(table))
    return str(file)


def test_a_study_is_gone_on_with_and_shown_again_without_training(config, tmp_path, capsys, monkeypatch):
    out = tmp_path / "out"
    assert main(["study", config, "--out", str(out), "--methods", "plain"]) == 0
    assert "1 runs, 0 of them done before" in capsys.readouterr().err
    assert main(["study", config, "--out", str(out)]) == 0
    told = capsys.readouterr()
    assert "2 runs, 1 of them done before" in told.err and "| dgl" in told.out.replace("**", "")
    assert [r["run"]["entry"]["name"] for r in read(out / "runs.jsonl")] == ["plain", "dgl"]

    monkeypatch.setattr(pool, "_until_a_death", None)  # nothing is left to be run
    assert main(["study", config, "--out", str(out)]) == 0
    assert main(["study", config, "--out", str(out), "--table"]) == 0
    assert {path.name for path in out.iterdir()} >= {"table.md", "study.html", "picture.svg"}


def test_a_process_that_dies_twice_is_a_failed_run_and_the_others_go_on(tmp_path):
    dies, lives = tiny("dgl", 2), tiny("stream", 2)
    found = pool.run_all([dies, lives], "digits", tmp_path, jobs=1, run=die_with_dgl)
    assert "ended 2 times" in found[0]["error"] and found[1]["accuracy"] == 50.0
    assert [r["key"] for r in read(tmp_path / "runs.jsonl")] == [lives.key]  # the other is tried again next time


def test_a_fork_server_that_died_is_started_again(tmp_path, monkeypatch):
    """On a machine that was very busy a study once ended with "Connection refused"."""
    submit, refused = pool.ProcessPoolExecutor.submit, []

    def refuse_once(self, *given):
        if not refused:
            refused.append(given)
            raise ConnectionRefusedError
        return submit(self, *given)

    monkeypatch.setattr(pool.ProcessPoolExecutor, "submit", refuse_once)
    found = pool.run_all([tiny("stream", 2)], "digits", tmp_path, jobs=1, run=die_with_dgl)
    assert refused and found[0]["accuracy"] == 50.0


def die_with_dgl(one, data, folder):
    if one.entry.method == "dgl":
        os._exit(9)
    return {"accuracy": 50.0, "said": [], "seconds": 1.0}


def test_a_table_of_two_studies_in_one_folder_is_refused(config, tmp_path, capsys):
    """Runs of 1 and of 2 epochs once were seeds of one row."""
    out = str(tmp_path / "out")
    assert main(["study", config, "--out", out, "--methods", "plain"]) == 0
    assert main(["study", config, "--out", out, "--methods", "plain", "--epochs", "2"]) == 0  # shows its own run alone
    capsys.readouterr()
    assert main(["study", config, "--out", out, "--table"]) == 2
    assert "holds runs of several studies (epochs 1 and 2)" in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_alone(config, tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "table.md").write_text("mine")
    for command in (["study", config], ["paper", "1"], ["paper", "6", "--show"]):
        assert main([*command, "--out", str(tmp_path / "notes")]) == 2
        assert "is not empty and holds no results" in capsys.readouterr().err
        assert main([*command, "--out", config]) == 2
        assert "is a file; give a folder" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["table.md"]


def test_tuned_options_are_timed_as_they_were_chosen(config, tmp_path, capsys, monkeypatch):
    table = json.loads((file := tmp_path / "tiny.json").read_text())
    file.write_text(json.dumps({**table, "methods": ["plain", {"method": "dgl", "lr": [0.05, 0.1]}]}))
    out = str(tmp_path / "out")
    assert main(["study", config, "--out", out, "--times"]) == 2
    assert "--times: lr of dgl is tuned by accuracy, and nothing is chosen yet" in capsys.readouterr().err
    assert main(["study", config, "--out", out]) == 0
    timed = []
    monkeypatch.setattr("lpcompile.study.times.time_all", lambda specs, out: timed.extend(specs))
    assert main(["study", config, "--out", out, "--times"]) == 0
    assert [one.entry.options["lr"] in (0.05, 0.1) for one in timed if one.entry.name == "dgl"] == [True]


def test_a_tuned_method_that_never_trains_says_why(config, tmp_path, capsys):
    """Its list of values once reached the optimizer."""
    file = tmp_path / "tiny.json"
    methods = ["plain", {"name": "tuned", "method": "gpipe[micro=64]", "lr": [0.05, 0.1]}]
    file.write_text(json.dumps({**json.loads(file.read_text()), "methods": methods}))
    assert main(["study", config, "--out", str(tmp_path / "out")]) == 1
    last = read(tmp_path / "out" / "runs.jsonl")[-1]
    assert last["run"]["entry"]["options"] == {"lr": 0.05} and "micro" in last["error"] and "crash" not in last
    assert "0 of 1, 1 failed" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--times", "--table"], ["--networks", "vgg"], ["-K", "x"], ["--count", "3"]])
def test_wrong_usage_ends_with_2(arguments, config, tmp_path, capsys):
    assert main(["study", config, "--out", str(tmp_path / "out"), *arguments]) == 2
    assert "lpcompile:" in capsys.readouterr().err


def test_more_images_than_there_are_are_refused(config, tmp_path, capsys):
    assert main(["study", config, "--out", str(tmp_path / "out"), "--images", "1400"]) == 2
    assert "has 1438 training images, fewer than images = 1400" in capsys.readouterr().err


def test_a_folder_without_images_is_named(config, tmp_path, capsys):
    assert main(["study", config, "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "images" in capsys.readouterr().err


def test_an_exact_pipeline_trains_as_accumulated_gradients_do_and_a_record_has_all_figures(digits):
    """`ddp` takes means over K parts of a batch, which is what two micro-batches are."""
    pipeline, parallel = (train_run(one, "digits", digits) for one in (tiny("gpipe[micro=2]", 2), tiny("ddp", 2)))
    assert pipeline["accuracy"] == parallel["accuracy"] and pipeline["curve"] == parallel["curve"]
    assert pipeline["loss"] == pytest.approx(parallel["loss"], abs=1e-3)
    assert [epoch for epoch, _ in pipeline["curve"]] == [1, 2] and pipeline["simulated"]["rho"] > 0
    assert pipeline["micro"] == 2 and pipeline["cpu_seconds"] > 0


def test_a_refusal_is_a_result(digits):
    found = train_run(tiny("gpipe[micro=64]", 2), "digits", digits)
    assert "micro" in found["error"] and "accuracy" not in found


def test_a_crash_is_recorded_as_one(tmp_path):
    found = train_run(tiny(), "digits", tmp_path)  # there are no decoded images
    assert found["crash"] and "error" in found and "seconds" in found


def test_steps_are_timed_alone_and_simulated_for_more_stages():
    assert len(time_rank(tiny(), 3)) == 3
    found = simulate_step(tiny("penalty", 3), 3)
    assert found["rho"] == pytest.approx(found["plain"] / found["step"]) and found["step"] > 0
    assert found["exact step"] > 0 and "exact step" not in simulate_step(tiny("stream", 3), 3)


def test_a_record_has_the_predicted_speedup_of_exact_steps_between_decoupled_ones():
    """A third of a run's steps were exact, and its speedup that of decoupled ones."""
    one = spec("penalty", 4, model="resnet32")
    found = simulated(compiled(one, build(one.network, one.size)))
    assert 1 < found["exact rho"] < found["rho"]


def test_decoupled_steps_are_timed_without_their_warm_up_and_exact_ones_alone(monkeypatch):
    ran = []
    step = Trainer.step
    monkeypatch.setattr(Trainer, "step", lambda self, *a: ran.append(step(self, *a)["method"]))
    one = tiny("penalty", 2)
    time_rank(one, 3)
    decoupled, ran[:] = list(ran), []
    time_rank(one, 3, exact=True)
    assert set(decoupled) == {"penalty"} and set(ran) == {"warmup"}
    assert with_auxnets(one) and not with_auxnets(tiny("stream", 2)) and not with_auxnets(tiny())


def test_a_record_tells_its_share_of_exact_steps(digits):
    found = train_run(replace(tiny("penalty", 2), images=320), "digits", digits)  # two warm-up steps of twenty
    assert found["exact"] >= 0.1 and "exact" not in train_run(tiny("gpipe", 2), "digits", digits)


def test_two_stages_are_timed_in_two_processes_and_only_once(tmp_path, monkeypatch):
    found = time_all([tiny("gpipe", 2)], tmp_path, steps=2)
    assert found[0].get("kind") == ("measured" if len(os.sched_getaffinity(0)) > 1 else "simulated"), found[0]
    monkeypatch.setattr("lpcompile.study.times._timed", None)
    assert time_all([tiny("gpipe", 2)], tmp_path, steps=2) == found


def test_plain_training_begins_as_a_decoupled_run_does(digits, monkeypatch):
    """A consistent start sets residual branches to zero, which alone lifts plain training in short runs."""
    begun = []
    monkeypatch.setattr("lpcompile.study.train_run._plain", lambda spec, model, *rest: begun.append(model) or [])
    deeper = replace(TINY, depth=20)
    for one in (tiny(), tiny("plain", 2, init="consistent")):
        assert "error" not in train_run(replace(one, network=deeper), "digits", digits)
    silenced = [sum(not p.any() for n, p in m.named_parameters() if n.endswith("weight")) for m in begun]
    assert silenced[0] == 0 and silenced[1] > 0


def test_plain_training_from_a_consistent_start_takes_plain_trainings_time(tmp_path):
    one = tiny("plain", 4, init="consistent")
    [found] = time_all([one], tmp_path, steps=2)
    assert found["kind"] == "measured" and found["rho"] == pytest.approx(1.0)
