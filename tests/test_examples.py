"""The examples for users, in a short form: on two processes, with validation, checkpoints and resume."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTEST_CURRENT_TEST", None)  # for which a notebook's kernel leaves out what its processes print
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def epochs(text: str) -> list[str]:
    return re.findall(r"^epoch (\d+): test loss", text, re.MULTILINE)


def test_a_module_of_ones_own_with_its_loader(tmp_path):
    example = str(ROOT / "examples" / "own_module.py")
    first = run(tmp_path, example, "--epochs", "1", "--samples", "256", "--save", "run", "--workers", "1")
    assert epochs(first) == ["1"] and "accuracy 0." in first and "ms a step for data" in first
    assert (tmp_path / "run" / "best" / "best.json").is_file()
    more = run(tmp_path, example, "--epochs", "2", "--samples", "256", "--save", "run")
    assert epochs(more) == ["2"] and "best test accuracy" in more
    assert [p.name for p in sorted((tmp_path / "run").glob("step-*"))] == ["step-00000004", "step-00000008"]


def test_a_folder_of_images(tmp_path):
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        from image_folder import draw
    finally:
        sys.path.pop(0)
    pytest.importorskip("torchvision")
    draw(tmp_path / "images", 8)
    example = (str(ROOT / "examples" / "image_folder.py"), "small", "images", "--batch", "8", "--save", "run")
    assert epochs(run(tmp_path, *example, "--epochs", "1")) == ["1"]  # it resumes as own_module.py does


@pytest.mark.parametrize("loop", ["trainer", "fit"])
def test_a_model_of_transformers_with_its_own_loss(loop, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    example = (str(ROOT / "examples" / "hugging_face.py"), "--loop", loop, "--samples", "64", "--save", "run")
    first = run(tmp_path, *example, "--epochs", "1")
    assert re.search(r"accuracy 0\.\d", first)
    if loop == "fit":  # it resumes as own_module.py does
        assert epochs(first) == ["1"] and "test recall" in first
    else:
        assert "epoch 2: loss" in run(tmp_path, *example, "--epochs", "2")
        found = {p.name for p in (tmp_path / "run").glob("checkpoint-*")}
        assert found == {"checkpoint-2", "checkpoint-4"}


def test_a_lightning_module(tmp_path):
    pytest.importorskip("lightning")
    example = (str(ROOT / "examples" / "lightning_module.py"), "--samples", "128", "--save", "run")
    text = run(tmp_path, *example, "--epochs", "1")
    assert "epoch 1: train_loss" in text and "val_accuracy" in text
    assert "sync_dist" not in text and "requires_grad" not in text
    assert (tmp_path / "run" / "best.ckpt").is_file()
    more = run(tmp_path, *example, "--epochs", "2")
    assert "Restored all states" in more and "epoch 2: train_loss" in more


def test_fine_tuning(tmp_path):
    pytest.importorskip("sklearn")
    short = ("--images", "20", "--few", "16", "--epochs", "1", "1", "--rates", "0.03")
    text = run(tmp_path, str(ROOT / "examples" / "fine_tune.py"), *short)
    assert re.search(r"^\| plain \| \d+\.\d %", text, re.MULTILINE) and "best of penalty: " in text


def test_a_notebook(tmp_path):
    pytest.importorskip("nbconvert")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    shutil.copy(ROOT / "examples" / "notebook.ipynb", tmp_path)
    run(tmp_path, "-m", "nbconvert", "--to", "notebook", "--execute", "--ExecutePreprocessor.timeout=500",
        "notebook.ipynb", "--output", "done.ipynb")  # fmt: skip
    cells = json.loads((tmp_path / "done.ipynb").read_text())["cells"]
    shown = "\n".join(json.dumps(cell["outputs"]) for cell in cells if cell["cell_type"] == "code")
    assert "accuracy of the model in this process" in shown and "epoch 4: test loss" in shown
    assert (tmp_path / "notebook-run").is_dir()


SCRIPT = """
import sys, torch, torch.nn.functional as F
from torch import nn
import lpcompile
print("the script runs")
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
    def forward(self, x):
        return x + torch.tanh(self.linear(x))
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32
    def __getitem__(self, i):
        return torch.full((6,), i / 32), torch.tensor(i % 3)
def loss(out, y):
    return F.cross_entropy(out, y)
torch.manual_seed(0)
model = nn.Sequential(*[Block() for _ in range(4)], nn.Linear(6, 3))
loader = torch.utils.data.DataLoader(Data(), 8, num_workers=2, persistent_workers=True, pin_memory=True)
x, y = next(iter(loader))
program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
before = model[0].linear.weight.clone()
record = program.fit(loss, loader, 3, test=loader, optimizer=lambda ps: torch.optim.SGD(ps, 0.1), timeout=300)
assert not torch.equal(before, model[0].linear.weight) and record.timing.steps == 12
print("trained", record.history[-1]["epoch"])
"""


@pytest.mark.parametrize("how", ["a script without a guard", "python -c"])
def test_classes_of_a_script_work_without_a_guard_and_workers_stay(how, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    text = run(tmp_path, "script.py") if how.startswith("a script") else run(tmp_path, "-c", SCRIPT)
    assert text.count("the script runs") == 1 and text.splitlines().count("trained 3") == 1
    assert text.count("This DataLoader will create") <= 1  # of the parent itself, which looked at a batch
    assert text.count("pin_memory' argument is set") <= 2  # of the parent, and of rank 0
