"""What a study runs, and what it refuses before anything is trained."""

from __future__ import annotations

import json

import pytest

from lpcompile.errors import LpError, UsageError
from lpcompile.study.config import BUILT_IN, TUNING_SEED, RunSpec, load, study_of, tuned
from lpcompile.study.networks import NAMED, build, example
from tests.study.small_study import record, spec

TABLE = {"models": ["resnet20"], "methods": ["plain", "stream[micro=2]"], "data": "digits", "K": [2, 4], "seeds": 2}


def test_plain_training_runs_once_a_seed_and_the_others_at_every_K():
    runs = [(run.entry.name, run.K, run.seed) for run in study_of(TABLE).runs()]
    both = [("plain", 1), ("stream[micro=2]", 2), ("stream[micro=2]", 4)]
    assert runs == [(*one, seed) for seed in (0, 1) for one in both]


def test_a_K_that_is_named_twice_is_run_once():
    assert study_of({**TABLE, "K": [2, 4, 2]}).K == (2, 4)


def test_a_run_is_the_same_wherever_its_data_lie_and_after_a_round_trip():
    here, there = (next(study_of({**TABLE, "data": data}).runs()) for data in ("images", "/elsewhere/images/"))
    assert here.data == "images/" and here == there and here.key == there.key
    assert RunSpec.from_json(json.loads(json.dumps(here.to_json()))).key == here.key
    assert len({run.key for run in study_of(TABLE).runs()}) == 6


def test_lists_of_options_are_tried_on_validation_data_and_the_best_is_run():
    study = study_of({**TABLE, "methods": ["plain", {"method": "dgl", "aux_budget": [0.1, 0.3]}], "K": 2})
    candidates = list(study.candidates())
    assert [(c.entry.options, c.split, c.seed) for c in candidates] == [
        ({"aux_budget": budget}, "validation", TUNING_SEED) for budget in (0.1, 0.3)
    ]
    found = [{"run": c.to_json(), "accuracy": accuracy} for c, accuracy in zip(candidates, (60.0, 62.0), strict=True)]
    reported = [run for run in study.runs(tuned(found)) if run.entry.name == "dgl"]
    assert [(run.entry.options, run.split) for run in reported] == [({"aux_budget": 0.3}, "test")] * 2
    assert not tuned([record(60.0, "dgl", 2)])  # a run to report chooses nothing


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_studies_are_valid(name):
    assert list(study_of(load(name)).runs())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"modles": []}, "did you mean models"),
        ({"models": []}, "needs models"),
        ({"models": ["resnet21"]}, "no model 'resnet21'"),
        ({"models": [{"name": "a", "family": "resnet", "width": 8, "depth": 21}]}, "6n [+] 2"),
        ({"models": [{"name": "a", "family": "lstm", "width": 8, "depth": 2}]}, "family 'lstm' is not one of"),
        ({"models": ["resnet20", "resnet20"]}, "there twice"),
        ({"methods": ["plain", "strem"]}, "strem"),
        ({"methods": ["plain", {"method": "dgl", "aux_buget": 1}]}, "did you mean aux_budget"),
        ({"methods": ["plain", {"method": "dgl", "aux_budget": "big"}]}, "no int or float"),
        ({"methods": ["plain", {"method": "dgl", "aux_budget": []}]}, "empty list"),
        ({"methods": [{"method": "plain", "aux_budget": 0.3}]}, "aux_budget has no effect on 'plain'"),
        ({"methods": [{"method": "ddp", "init": "consistent"}]}, "init has no effect on 'ddp'"),
        ({"methods": ["plain", {"method": "ddp", "micro": 2}]}, "micro has no effect on 'ddp'"),
        ({"K": [1]}, "2 or more"),
        ({"K": ["two"]}, "K 'two'"),
        ({"seeds": 0}, "seeds 0"),
        ({"epochs": True}, "epochs True"),
        ({"images": 100}, "fewer than one batch of 128"),
        ({"split": "train"}, "neither 'test' nor 'validation'"),
    ],
)
def test_a_wrong_study_is_refused_with_what_to_write(change, says):
    with pytest.raises(LpError, match=says):
        study_of({**TABLE, **change})


def test_plain_training_is_run_once_unless_it_begins_as_a_decoupled_run_with_k_stages_does():
    start = {"name": "start", "method": "plain", "init": "consistent"}
    runs = study_of({**TABLE, "methods": ["plain", start], "K": [2, 4], "seeds": 1}).runs()
    assert [(run.entry.name, run.K) for run in runs] == [("plain", 1), ("start", 2), ("start", 4)]


def test_files_that_hold_no_study_are_named(tmp_path):
    (tmp_path / "a.json").write_text("{")
    (tmp_path / "b.json").write_text("[]")
    (tmp_path / "c.toml").write_text("models = [")
    for name, says in (("a.json", "cannot be read"), ("b.json", "holds a list"), ("none.json", "there is no file")):
        with pytest.raises(UsageError, match=says):
            load(str(tmp_path / name))
    with pytest.raises(UsageError, match=r"c.toml"):
        load(str(tmp_path / "c.toml"))
    with pytest.raises(UsageError, match="did you mean smoke"):
        load("smok")


def test_toml_and_json_say_the_same(tmp_path):
    pytest.importorskip("tomllib")
    (tmp_path / "a.toml").write_text('models = ["resnet20"]\nmethods = ["plain"]\nK = [2]\n')
    (tmp_path / "a.json").write_text('{"models": ["resnet20"], "methods": ["plain"], "K": [2]}')
    assert load(str(tmp_path / "a.toml")) == load(str(tmp_path / "a.json"))


@pytest.mark.parametrize("name", NAMED)
def test_named_networks_take_their_example(name):
    network = NAMED[name]
    x = example(network, 16, 2)
    output = build(network, 16).eval()(x)
    assert output.shape == ((2, 64, 256) if network.text else (2, 10))


def test_a_name_shows_what_is_run():
    assert (str(spec()), str(spec("dgl", 4, 2))) == ("resnet20 plain seed 0", "resnet20 dgl K=4 seed 2")
