"""The four READMEs say what is true: commands and Python run, shown output is what is printed, paths exist.

Comments before a fenced block mark it:

    <!-- slow -->       takes minutes or several processes: run with `pytest -m slow tests/test_readme.py`
    <!-- ci:... -->     makes an environment: only its form is checked, `.ci/run` runs it
    <!-- exit-1 -->     may end with exit code 1 (a gate that is missed)
    <!-- output -->     is what the block before it prints

`python tests/test_readme.py` writes the output blocks anew.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "passes/README.md", "runtime/README.md", "examples/README.md")
MARK = re.compile(r"<!-- ([\w/:. -]+?) -->")
INSTALL = frozenset({"ci:main", "ci:test"})
CLASSES, IMAGES = ("cat", "dog"), 40  # of the stand-in for CIFAR-10

# Runs the Python blocks of a page in one namespace, with the page's own line numbers in tracebacks.
RUN_PYTHON = """
import contextlib, io, json, sys
namespace, printed = {"__name__": "__main__"}, []
for block in json.load(open(sys.argv[1])):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile("\\n" * block["line"] + block["text"], block["page"], "exec"), namespace)
    printed.append(out.getvalue())
json.dump(printed, open(sys.argv[1], "w"))
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: `line` is that of its opening fence."""

    page: str
    line: int
    language: str
    marks: frozenset[str]
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str) -> list[Block]:
    found: list[Block] = []
    marks: set[str] = set()
    fence: tuple[int, str] | None = None
    for at, line in enumerate((ROOT / page).read_text().splitlines(), start=1):
        if fence is None and line.startswith("```"):
            fence, lines = (at, line[3:].strip()), []
        elif fence is not None and line == "```":
            found.append(Block(page, *fence, frozenset(marks), "".join(f"{one}\n" for one in lines)))
            fence, marks = None, set()
        elif fence is not None:
            lines.append(line)
        elif line.strip():
            mark = MARK.fullmatch(line)
            marks = marks | {mark[1]} if mark else set()
    return found


def commands() -> list[Block]:
    return [b for page in PAGES for b in blocks(page) if b.language == "sh" and not b.marks & INSTALL]


def outputs() -> list[tuple[Block, Block]]:
    """(block that prints, block that shows it)."""
    found = []
    for page in PAGES:
        every = blocks(page)
        found += [(before, b) for before, b in pairwise(every) if "output" in b.marks]
    return found


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def make_desk(folder: Path) -> dict[str, str]:
    """A folder like a checkout with an active environment; gives the environment variables to run in it."""
    (folder / "examples").symlink_to(ROOT / "examples")
    for place in (folder / "bin", folder / ".venv" / "bin"):
        place.mkdir(parents=True)
        for name, arguments in (("python", ""), ("torchrun", " -m torch.distributed.run")):
            script = place / name
            script.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
            script.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}


def add_images(folder: Path) -> None:
    """`cifar10/` as the READMEs have it, with a few random images in place of the data set."""
    import torch
    from torchvision.transforms.functional import to_pil_image

    for part in ("train", "test"):
        for label in CLASSES:
            place = folder / "cifar10" / part / label
            place.mkdir(parents=True)
            for i in range(IMAGES):
                to_pil_image(torch.rand(3, 32, 32)).save(place / f"{i}.png")


def run_commands(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = make_desk(folder)
    if "cifar10/" in block.text:
        add_images(folder)
    script = "set -euo pipefail\n" + block.text
    seconds = 4 * 3600 if "slow" in block.marks else 300
    command = ["bash", "-c", script]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)


def run_python(page: str, folder: Path) -> dict[int, str]:
    """Run all Python of a page but what is slow; gives what each block printed, by its line."""
    mine = [b for b in blocks(page) if b.language == "python" and not b.marks & {"slow", "output"}]
    file = folder / "blocks.json"
    file.write_text(json.dumps([{"page": b.page, "line": b.line, "text": b.text} for b in mine]))
    command = [sys.executable, "-c", RUN_PYTHON, str(file)]
    environment = {**make_desk(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return {b.line: text for b, text in zip(mine, json.loads(file.read_text()), strict=True)}


def plain(text: str) -> str:
    """As it is kept in a README: without blanks at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.strip("\n").splitlines())


def marked(found: list[Block]) -> list[object]:
    return [pytest.param(b, id=b.name, marks=[pytest.mark.slow] if "slow" in b.marks else []) for b in found]


@pytest.mark.parametrize("block", marked(commands()))
def test_commands_run_and_print_what_is_shown(block: Block, tmp_path: Path) -> None:
    done = run_commands(block, tmp_path)
    assert done.returncode in ((0, 1) if "exit-1" in block.marks else (0,)), done.stdout + done.stderr
    for shown in [shown for before, shown in outputs() if before == block]:
        assert plain(done.stdout) == shown.text, "run `python tests/test_readme.py` to show what is printed now"


@pytest.mark.parametrize("page", [p for p in PAGES if any(b.language == "python" for b in blocks(p))])
def test_python_blocks_run_and_print_what_is_shown(page: str, tmp_path: Path) -> None:
    printed = run_python(page, tmp_path)
    for before, shown in outputs():
        if before.page == page and before.language == "python":
            now = plain(printed[before.line])
            assert now == shown.text, "run `python tests/test_readme.py` to show what is printed now"


def test_install_commands_make_an_environment_with_an_extra_that_exists() -> None:
    found = [b for page in PAGES for b in blocks(page) if b.marks & INSTALL]
    assert [b.marks for b in found] == [{"ci:main"}, {"ci:test"}]
    for block in found:
        venv, pip, run = block.text.strip().split(" && ")
        assert venv == "python3 -m venv .venv"
        extra = re.fullmatch(r"\.venv/bin/pip install -e '\.\[(\w+)\]'", pip)
        assert extra and f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text()
        program = run.removeprefix(".venv/bin/python ").split()
        assert program[:2] == ["-m", "pytest"] or (ROOT / program[0]).is_file()


def test_what_the_install_command_ends_with_is_run_as_a_slow_command() -> None:
    quick = next(b for b in blocks("README.md") if "ci:main" in b.marks).text.rsplit("/", 1)[1].strip()
    assert any(quick in b.text for b in commands() if "slow" in b.marks), f"no slow block runs examples/{quick}"


def test_commands_stand_in_blocks_where_they_are_run() -> None:
    for page in PAGES:
        inline = re.findall(r"`((?:python|torchrun|lpcompile) [^`]*)`", prose(page))
        assert not inline, f"{page}: move to a sh block: {inline}"


def test_readme_has_at_most_200_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES)
def test_links_and_paths_exist(page: str) -> None:
    text = prose(page)
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        assert "://" in link or ((ROOT / page).parent / link).exists(), f"{page}: {link}"
    for path in re.findall(r"`((?:lpcompile|passes|runtime|tests|examples)/[\w./]*)`", text):
        assert (ROOT / path).exists(), f"{page}: {path}"


def test_links_to_headings_have_one() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#]*)#([^)]+)\)", prose(page)):
            file = (ROOT / page).parent / target if target else ROOT / page
            headings = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings]
            assert anchor in anchors, f"{page}: {target}#{anchor}"


def folder_map() -> list[str]:
    """Its paths: a line that is not indented begins with a folder, and other folders are relative to the last one."""
    found, above = [], ""
    for line in next(b for b in blocks("README.md") if "folders" in b.marks).text.splitlines():
        if not line.startswith(" "):
            above = line.split()[0]
            found.append(above)
        found += [above + name for name in re.findall(r"(?<= )\w+/", line)]
    return found


def test_the_folder_map_has_every_room_and_nothing_else() -> None:
    listed = folder_map()
    for path in listed:
        assert (ROOT / path).is_dir(), path
    for above in ("lpcompile", "passes", "runtime"):
        folders = [p for p in (ROOT / above).iterdir() if (p / "__init__.py").is_file() and not p.is_symlink()]
        missing = [f"{above}/{p.name}/" for p in folders if f"{above}/{p.name}/" not in listed]
        assert not missing, f"the folder map of README.md lacks {missing}"


def table_rows(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose first heading is `first`."""
    lines = (ROOT / page).read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    rows = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_methods_table_says_what_the_records_of_the_methods_say() -> None:
    from lpcompile.runtime.methods import METHODS

    rows = {row[0].strip("`"): row[1:] for row in table_rows("README.md", "method")}
    assert set(rows) == set(METHODS)
    for name, method in METHODS.items():
        traits = (method.exact, method.delayed, method.aux == "auxnet", method.heads)
        assert rows[name] == [method.summary, *("✓" if trait else "" for trait in traits)], name


def test_the_command_table_has_every_command() -> None:
    command = [sys.executable, "-m", "lpcompile", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    listed = re.findall(r"^    (\w+)\b", done.stdout, flags=re.MULTILINE)
    cells = [row[0] for row in table_rows("README.md", "command or call") if "(" not in row[0] and "Plan" not in row[0]]
    named = [part.strip("`").split()[0] for cell in cells for part in cell.split(", ")]
    assert sorted(named) == sorted(listed)


def test_both_rooms_have_the_same_table_of_ten_typical_changes() -> None:
    compiler, runtime = (table_rows(f"{room}/README.md", "to change or add") for room in ("passes", "runtime"))
    assert compiler == runtime
    assert len(compiler) == 10


def test_what_the_table_of_changes_names_stands_in_the_file_that_it_names() -> None:
    rows = [row[1] for row in table_rows("passes/README.md", "to change or add")]
    named = [pair for row in rows for pair in re.findall(r"`(\w+)`[^`;,]* (?:of|in) `([\w/]+\.py)`", row)]
    missing = [f"{file}: {name}" for name, file in named if not defines(ROOT / file, name)]
    assert len(named) >= 8 and not missing, missing


def defines(file: Path, name: str) -> bool:
    """Whether a module has this function, class or variable at its top."""
    for node in ast.parse(file.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if getattr(node, "name", None) == name or any(isinstance(t, ast.Name) and t.id == name for t in targets):
            return True
    return False


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.py")), ids=lambda file: file.name)
def test_examples_import_what_exists_and_are_listed(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lpcompile"):
            exec(ast.unparse(node), {})
    assert f"`{file.name}`" in (ROOT / "examples" / "README.md").read_text()


def test_api_pages_are_rendered_without_a_warning(tmp_path: Path) -> None:
    import lpcompile

    block = next(b for b in commands() if "-m pdoc" in b.text)
    done = run_commands(block, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    page = (tmp_path / "build" / "api" / "lpcompile.html").read_text()
    assert all(f'id="{name}"' in page for name in lpcompile.__all__ if name != "models")


def write_outputs() -> None:
    """Show in every output block what its command or Python prints now."""
    for page in PAGES:
        lines = (ROOT / page).read_text().splitlines()
        shown = [(before, after) for before, after in outputs() if before.page == page]
        with tempfile.TemporaryDirectory() as folder:
            printed = run_python(page, Path(folder)) if any(b.language == "python" for b, _ in shown) else {}
        for before, after in reversed(shown):
            if before.language == "sh":
                with tempfile.TemporaryDirectory() as folder:
                    text = run_commands(before, Path(folder)).stdout
            else:
                text = printed[before.line]
            lines[after.line : after.line + len(after.text.splitlines())] = plain(text).splitlines()
        (ROOT / page).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    assert shutil.which("bash")
    write_outputs()
