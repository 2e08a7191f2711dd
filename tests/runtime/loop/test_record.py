"""The record of a run, its callbacks and loggers, early stopping and the best checkpoint."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch
import torch.nn.functional as F

from lpcompile.errors import UsageError
from lpcompile.runtime.loop.callbacks import Announcer, Callback, calls_of
from lpcompile.runtime.loop.loggers import WeightsAndBiases
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.runtime.loop.record import Record, Timing
from tests.runtime.small import batches, compiled, norm_mlp, sgd


class Loader(list):
    """Batches in a list, with a length."""


DATA = Loader(batches(4, dtype=torch.float32))


def trained(epochs=3, test=DATA, calls=None, optimizer=sgd, **watch):
    program = compiled(norm_mlp(), 2, DATA[0][0], method="bp")
    trainer = program.trainer(F.cross_entropy, optimizer=optimizer)
    announce = Announcer(trainer, calls, bool(calls))
    return run(trainer, DATA, epochs, test=test, watch=LoopOptions(**watch).check(), announce=announce), trainer


def test_the_record_has_figures_history_and_timing():
    record, _ = trained()
    assert record.accuracy == record["test accuracy"] and record.loss == dict(record)["test loss"]
    assert [row["epoch"] for row in record.history] == [1, 2, 3] and record.history[-1]["step"] == 12
    assert record.history[0]["loss"] > 0 and record.history[0]["test accuracy"] >= 0
    assert record.timing.steps == 12 and 0 < record.timing.step_ms < 1e3 * record.timing.seconds
    assert record["data ms"] >= 0 and record.timing.data_ms >= 0
    again = json.loads(json.dumps(record.to_dict()))
    assert again["accuracy"] == record.accuracy and again["timing"]["steps"] == 12
    text = str(record)
    assert text.startswith(f"accuracy {record.accuracy:.4f}, loss {record.loss:.4f}\n") and "ms a step" in text
    assert len(pytest.importorskip("pandas") and record.to_pandas()) == 3


def test_a_record_without_test_data_shows_training_data():
    record, _ = trained(1, test=None)
    assert record.accuracy == record["train accuracy"] and record.loss == record["train loss"]
    bare = Record({"loss": 0.5}, timing=Timing(1.0, 2))
    assert bare.accuracy is None and bare.loss == 0.5 and "loss 0.5000" in str(bare)


def test_callbacks_see_the_run_and_end_it():
    seen = []

    class Mine(Callback):
        def on_epoch(self, figures):
            seen.append(("epoch", figures["epoch"]))

    calls = calls_of([Mine()], on_step=lambda f: seen.append(("step", f["step"])),
                     on_evaluate=lambda f: f["test loss"] > 0 and f["epoch"] == 2)  # fmt: skip
    record, trainer = trained(5, calls=calls, log_every=2)
    assert seen == [("step", 1), ("step", 3), ("epoch", 1), ("step", 5), ("step", 7), ("epoch", 2)]
    assert record.stopped == "stopped by a callback at step 8" and trainer.steps == 8


def test_loggers_have_one_interface(monkeypatch, tmp_path):
    rows, closed = [], []

    class Mine:
        def log(self, figures, step):
            rows.append((step, figures))

        def close(self):
            closed.append(True)

    one = types.SimpleNamespace(log=lambda row, step: rows.append((step, row)), finish=lambda: closed.append("wandb"))
    fake = types.ModuleType("wandb")
    fake.init, fake.__spec__ = (lambda project, **options: one), types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    calls = calls_of(loggers=[Mine()])
    trained(1, calls=calls, log_every=4, wandb="mine")
    calls.close()
    assert closed == ["wandb", True] and len(rows) == 4  # a step and an evaluation, for each logger
    assert {"loss", "epoch"} <= set(rows[0][1]) and any("test accuracy" in row for _, row in rows)
    assert "method" not in rows[0][1]  # numbers only
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UsageError, match="pip install wandb"):
        WeightsAndBiases("mine")
    with pytest.raises(UsageError, match=r"has no methods log\(figures, step\) and close\(\)"):
        calls_of(loggers=[object()])


def climbing(parameters):
    return torch.optim.SGD(parameters, 0.05, maximize=True)  # every epoch is worse than the one before


def test_training_ends_when_nothing_improves_and_the_best_weights_are_kept(tmp_path):
    record, trainer = trained(9, optimizer=climbing, save=str(tmp_path), best="test loss", patience=2, load_best=True)
    assert record.stopped == "stopped after epoch 3: test loss has not improved for 2 evaluations"
    assert record.best["epoch"] == 1 and trainer.steps == 12
    assert trainer.evaluate(DATA)["loss"] == pytest.approx(record.best["value"], abs=1e-6)
    assert [p.name for p in sorted((tmp_path / "best").iterdir())] == ["best.json", "step-00000004"]


@pytest.mark.parametrize(("given", "says"), [
    ({"best": "test loss"}, "save=DIR"), ({"patience": None}, "patience=None is not a number of evaluations"),
    ({"resume": True}, "save=DIR"), ({"save_every": 5}, "save_every=5 needs a folder"), ({"keep": 0}, "1 or more"),
    ({"log_every": 0}, "log_every=0 is not a number of steps, 1 or more"),
    ({"patience": -1}, "not a number of evaluations"),
    ({"patience": 1, "evaluate_every": 0}, "evaluate_every"), ({"load_best": True, "patience": 1}, "save=DIR"),
])  # fmt: skip
def test_options_that_cannot_work_are_refused(given, says):
    with pytest.raises(UsageError, match=says):
        LoopOptions(**given).check()


def test_a_best_figure_that_nobody_measures_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"best='test f1' is no figure of the evaluations; they have test loss, "):
        trained(1, save=str(tmp_path), best="test f1")
