"""The tests themselves: they stand where the code stands, and none waits without a deadline."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
OTHERS = ("distributed", "faults", "golden", "properties")  # several rooms at once
# Rooms in which every module has a test file of its own, so that a mistake is found where it was made.
UNITS = ("passes/graph", "passes/capture", "passes/capture/record", "passes/split", "passes/profile", "passes/auxnet",
         "passes/codegen", "passes/codegen/text")  # fmt: skip


def test_the_tree_of_the_tests_is_that_of_the_rooms() -> None:
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path(".")}
    strangers = [
        str(folder)
        for folder in sorted(folders)
        if folder.parts[0] not in OTHERS and not any((top / folder).is_dir() for top in (ROOT, ROOT / "lpcompile"))
    ]
    assert not strangers, f"no room is called so: {strangers}"


@pytest.mark.parametrize("room", UNITS)
def test_every_module_of_the_compiler_has_a_test_of_its_own(room: str) -> None:
    modules = {path.stem for path in (ROOT / room).glob("*.py")} - {"__init__"}
    tested = {path.stem.removeprefix("test_") for path in (TESTS / room).glob("test_*.py")}
    assert not modules - tested, f"tests/{room} lacks a file for {sorted(modules - tested)}"


def calls(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


def test_a_test_that_waits_for_a_process_has_a_deadline() -> None:
    endless = []
    for path in sorted(TESTS.rglob("*.py")):
        for call in calls(path):
            text = ast.unparse(call.func)
            keywords = {k.arg for k in call.keywords}
            runs = text.startswith("subprocess.") and text.rpartition(".")[2] in ("run", "check_output", "check_call")
            bare = text.rpartition(".")[2] in ("communicate", "wait", "join", "result") and not call.args
            if (runs or bare) and not keywords & {"timeout", "seconds"}:
                endless.append(f"{path.relative_to(ROOT)}:{call.lineno}: {text}")
    assert not endless, "give a timeout: " + ", ".join(endless)


def test_files_that_take_long_are_known_by_their_text() -> None:
    from tests.conftest import takes_long

    assert takes_long(TESTS / "distributed" / "test_train.py") and takes_long(
        TESTS / "integrations" / "test_lightning.py"
    )
    assert not takes_long(TESTS / "core" / "test_tables.py")
