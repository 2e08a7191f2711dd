"""The code that `emit` writes: readable, the same every time, and safe whatever the names in the model are.

The golden files in tests/golden/emit show three models. After an intended change, write them again:

    LPCOMPILE_GOLDEN=1 python -m pytest -n 0 tests/emit/test_golden.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lpcompile
from lpcompile import models
from lpcompile.zoo.check import differences
from tests.emit.programs import Chain, gpt, program_of

GOLDEN = Path(__file__).parents[1] / "golden" / "emit"


def mobilenet() -> tuple[nn.Module, Tensor]:
    from torchvision.models import mobilenet_v3_small

    return mobilenet_v3_small(num_classes=10), torch.randn(2, 3, 64, 64)


GOLDEN_MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "resnet20": lambda: (models.resnet20(), torch.randn(2, 3, 32, 32)),
    "mobilenet_v3_small": mobilenet,
    "gpt_tiny": gpt,
}


@pytest.mark.parametrize("name", GOLDEN_MODELS)
def test_golden_code(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = GOLDEN_MODELS[name]()
    folder = program_of(model, 2, x).emit(tmp_path / "program")
    golden = [*sorted(folder.glob("*_[0-9].py")), folder / "schedule.json"]
    written = {file.name: file.read_text() for file in golden}
    if os.environ.get("LPCOMPILE_GOLDEN"):
        (GOLDEN / name).mkdir(parents=True, exist_ok=True)
        for file, text in written.items():
            (GOLDEN / name / file).write_text(text)
    assert written == {file.name: file.read_text() for file in (GOLDEN / name).iterdir()}
    assert not differences(model, *_loaded(folder, x))


def _loaded(folder: Path, x: Tensor) -> tuple[Any, ...]:
    loaded = lpcompile.load(folder)
    return loaded, ((x,), {}), True, loaded.module


def test_golden_code_passes_ruff() -> None:
    for arguments in (["check"], ["format", "--check"]):
        command = ["ruff", *arguments, "--isolated", "--line-length", "120", str(GOLDEN)]
        run = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False, timeout=120)
        assert run.returncode == 0, run.stdout + run.stderr


def test_eighteen_blocks_are_one_class(tmp_path: Path) -> None:
    program = program_of(models.resnet110(), 3, torch.randn(2, 3, 32, 32))
    text = (program.emit(tmp_path / "program") / "stage_1.py").read_text()
    assert text.count("class ") == 2
    assert "for i in range(1, 18)" in text


def test_emitting_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    model, x = gpt()
    program = program_of(model, 2, x)
    first, second = (_bytes(program.emit(tmp_path / name)) for name in ("one", "two"))
    assert first == second
    again = _bytes(lpcompile.load(tmp_path / "one").plan and program.emit(tmp_path / "one", overwrite=True))
    assert again == first


def _bytes(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


class Named(nn.Module):
    """A block whose layer, parameter and buffer have any name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self._modules[name] = nn.Linear(4, 4)
        self._parameters[f"{name}w"] = nn.Parameter(torch.randn(4))
        self._buffers[f"{name}b"] = torch.randn(4)

    def forward(self, x: Tensor) -> Tensor:
        layer: Any = self._modules[self.name]
        return x + torch.tanh(layer(x)) * self._parameters[f"{self.name}w"] + self._buffers[f"{self.name}b"]


HOSTILE = [
    'x"); open("pwned", "w"); ("', "x'); open('pwned', 'w'); ('", "a\nopen('pwned', 'w')\n", '"""', "'''", "\\", "\\\"",
    "class", "ﬁ", "__private", "self", "torch", "nn", "{0}", "%s", "0", " ", "#", "é", "lam", "x", "print",
]  # fmt: skip


def test_names_of_modules_cannot_inject_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model, x = Chain({name: Named(name) for name in HOSTILE}), torch.randn(3, 4)
    folder = program_of(model, 3, x).emit("program")
    loaded = lpcompile.load(folder)
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert not differences(model, loaded, ((x,), {}), True, loaded.module)
    assert not (tmp_path / "pwned").exists()


def test_a_constant_is_quoted(tmp_path: Path) -> None:
    class Constants(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = self.fc(x).masked_fill(x > float("inf"), float("-inf"))
            return torch.einsum("ij,kj->ik", x, x[..., None, :2:1].sum(-2).repeat(1, 2)).to(torch.float64)

    model, x = Constants(), torch.randn(3, 4)
    loaded = lpcompile.load(program_of(model, 1, x).emit(tmp_path / "program"))
    assert not differences(model, loaded, ((x,), {}), True, loaded.module)
