"""What `emit` refuses to write and where, and the command that calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import lpcompile
from lpcompile import EmitError, UsageError, models
from lpcompile.cli.main import main
from tests.emit.programs import Chain, program_of


class Local(nn.Linear):
    """A layer that importing finds, with an attribute that is no data."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def test_what_cannot_be_written_is_refused_with_a_remedy(tmp_path: Path) -> None:
    x = torch.randn(2, 4)

    class Inside(nn.Linear):
        pass

    layer = Local(4, 4)
    layer.lock = object()  # type: ignore[assignment]
    hooked = nn.Linear(4, 4)
    hooked.register_forward_hook(lambda *_: None)
    cases = {
        "made inside a function.*define the class at the top level": Inside(4, 4),
        r"bad.*attribute lock is a builtins.object object; make lock a plain value": layer,
        "bad.*has hooks.*remove them before emit": hooked,
    }
    for message, bad in cases.items():
        program = program_of(Chain({"good": nn.Linear(4, 4), "bad": bad}), 1, x)
        with pytest.raises(EmitError, match=message):
            program.emit(tmp_path / "program")
        assert list(tmp_path.iterdir()) == []  # nothing half written


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        program = program_of(nn.Sequential(nn.Linear(4, 4)), 1, torch.randn(2, 4))
    with pytest.raises(EmitError, match="has no values"):
        program.emit(tmp_path / "program")


def test_only_a_folder_of_its_own_is_replaced(tmp_path: Path) -> None:
    program = program_of(nn.Sequential(nn.Linear(4, 4)), 1, torch.randn(2, 4))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    (tmp_path / "file").write_text("")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not written by emit"):
            program.emit(tmp_path / "mine", overwrite=overwrite)
    with pytest.raises(UsageError, match="is a file"):
        program.emit(tmp_path / "file")
    program.emit(tmp_path / "program")
    with pytest.raises(UsageError, match="overwrite=True"):
        program.emit(tmp_path / "program")
    (tmp_path / "program" / "extra.txt").write_text("")
    program.emit(tmp_path / "program", overwrite=True)
    assert not (tmp_path / "program" / "extra.txt").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "mine", "program"]


def test_the_command_emits_with_given_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = models.resnet20()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    command = ["emit", "resnet20", "-K", "2", "--cost", "flops", "--batch", "2", "-o", str(tmp_path / "program")]
    assert main([*command, "--weights", str(tmp_path / "weights.pt")]) == 0
    assert "written to" in capsys.readouterr().out
    loaded = lpcompile.load(tmp_path / "program")
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
    assert main(command) == 2
    assert "--force" in capsys.readouterr().err
    torch.save({"conv1.weight": torch.zeros(1)}, tmp_path / "wrong.pt")
    assert main([*command, "--force", "--weights", str(tmp_path / "wrong.pt")]) == 2
    assert "does not fit ResNet" in capsys.readouterr().err
