"""Files that a command will write are checked before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from lpcompile.cli.main import main
from lpcompile.cli.parts.files import writable
from lpcompile.errors import UsageError


def test_a_file_that_can_be_written_is_given_back_and_not_made(tmp_path: Path) -> None:
    assert writable("json", None) is None
    assert writable("json", str(tmp_path / "new.json")) == tmp_path / "new.json"
    assert not (tmp_path / "new.json").exists()


def test_what_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text("kept")
    assert writable("json", str(file)) == file and file.read_text() == "kept"


@pytest.mark.parametrize("place", [".", "no/such/file.json"])
def test_a_folder_or_a_file_in_none_cannot_be_written(place: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--json .* cannot be written: give a file in a folder that exists and is"):
        writable("json", str(tmp_path / place))


def test_export_writes_safetensors_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "run", "model.pt"]) == 2
    assert "model.pt must end with .safetensors: that is the format that is written" in capsys.readouterr().err


def test_debug_raises_what_would_be_one_line() -> None:
    with pytest.raises(UsageError, match="must end with"):
        main(["export", "run", "model.pt", "--debug"])
