"""A wheel, an editable install and a bare checkout all give one package, and nothing generic in site-packages.

`lpcompile/passes` and `lpcompile/runtime` are links to folders at the top level. Everything here is built from a copy
of the tree, so that no build/ or egg-info is left behind in the checkout.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILT = ("lpcompile", "passes", "runtime", "pyproject.toml", "README.md", "LICENSE")
WHERE = "import lpcompile; from lpcompile.passes.codegen.text import names; print(lpcompile.__file__, names.__file__)"


def python(
    *arguments: str, cwd: Path, executable: str = sys.executable, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python in `cwd` with only `path` added; a failure shows what was printed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"} | ({} if path is None else {"PYTHONPATH": str(path)})
    result = subprocess.run(
        [executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


def fails_to_import(name: str, cwd: Path, executable: str = sys.executable, path: Path | None = None) -> bool:
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    return python("-c", code, cwd=cwd, executable=executable, path=path).stdout.strip() == "None"


def build(kind: str, tree: Path, output: Path) -> Path:
    """What `pip wheel .`, `python -m build --sdist` and `pip install -e .` ask the backend for, without a network."""
    output.mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(output)!r}))"
    return output / python("-c", code, cwd=tree).stdout.strip().splitlines()[-1]


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is packaged, links kept as links."""
    copy = tmp_path_factory.mktemp("checkout")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in BUILT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(source, copy / name)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tree, tmp_path_factory.mktemp("wheel"))


def test_the_links_are_relative_so_that_a_checkout_can_be_moved() -> None:
    assert os.readlink(ROOT / "lpcompile" / "passes") == "../passes"
    assert os.readlink(ROOT / "lpcompile" / "runtime") == "../runtime"


def test_a_wheel_holds_passes_and_runtime_inside_lpcompile_and_nothing_else_at_the_top(wheel: Path) -> None:
    names = contents(wheel)
    assert {name.partition("/")[0] for name in names} == {"lpcompile"}
    expected = {
        f"lpcompile/{path.relative_to(ROOT).as_posix()}"
        for folder in ("passes", "runtime")
        for path in (ROOT / folder).rglob("*.py")
    }
    assert "lpcompile/passes/codegen/text/names.py" in expected and expected <= names
    assert {"lpcompile/py.typed", "lpcompile/models/resnet.py", "lpcompile/zoo/entry.py"} <= names


def test_a_wheel_holds_every_module_and_data_file_of_lpcompile(wheel: Path) -> None:
    top = ROOT / "lpcompile"
    linked = [top / "passes", top / "runtime"]
    files = [p for p in top.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    expected = {p.relative_to(ROOT).as_posix() for p in files if not any(link in p.parents for link in linked)}
    assert {"lpcompile/study/smoke.json", "lpcompile/report/report.js", "lpcompile/draw/page.css"} <= expected
    assert expected <= contents(wheel), expected - contents(wheel)


def test_a_wheel_made_from_the_source_archive_is_the_same(tree: Path, wheel: Path, tmp_path: Path) -> None:
    archive = build("sdist", tree, tmp_path / "sdist")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    again = build("wheel", unpacked, tmp_path / "again")
    assert contents(again) == contents(wheel)


def test_an_installed_wheel_imports_from_anywhere(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    python(*install, cwd=tmp_path)
    printed = python("-c", WHERE, cwd=tmp_path, path=target).stdout
    assert printed.split() == [
        str(target / "lpcompile" / name) for name in ("__init__.py", "passes/codegen/text/names.py")
    ]
    for name in ("passes", "runtime"):
        assert fails_to_import(name, tmp_path, path=target)


def test_an_editable_install_follows_the_checkout_but_offers_no_bare_passes(tree: Path, tmp_path: Path) -> None:
    python("-m", "venv", "--without-pip", str(tmp_path / "venv"), cwd=tmp_path)
    executable = str(tmp_path / "venv" / "bin" / "python")
    # The new environment sees this one's packages (torch) but none of its .pth files, so not its lpcompile either.
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(python("-c", code, cwd=tmp_path, executable=executable).stdout.strip())
    (site / "parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    editable = build("editable", tree, tmp_path / "editable")
    with zipfile.ZipFile(editable) as archive:
        archive.extractall(site)  # all that an installer does with a pure wheel, short of the script
    printed = python("-c", WHERE, cwd=tmp_path, executable=executable).stdout
    assert printed.split() == [
        str(tree / "lpcompile" / name) for name in ("__init__.py", "passes/codegen/text/names.py")
    ]
    for name in ("passes", "runtime"):
        assert fails_to_import(name, tmp_path, executable)


def test_a_bare_checkout_imports(tmp_path: Path) -> None:
    printed = python("-c", WHERE, cwd=tmp_path, path=ROOT).stdout
    assert printed.split() == [
        str(ROOT / "lpcompile" / name) for name in ("__init__.py", "passes/codegen/text/names.py")
    ]


def test_import_brings_in_none_of_the_packages_that_only_some_commands_need(tmp_path: Path) -> None:
    code = "import sys, torch; before = {*sys.modules}; import lpcompile; print(*({*sys.modules} - before))"
    new = {name.partition(".")[0] for name in python("-c", code, cwd=tmp_path, path=ROOT).stdout.split()}
    assert "lpcompile" in new
    assert not new & {"torchvision", "timm", "transformers", "matplotlib", "networkx", "tabulate", "sklearn"}


def test_import_adds_less_than_a_fifth_of_a_second_to_that_of_torch(tmp_path: Path) -> None:
    # Processor time, so that a busy machine does not decide.
    code = "import time, torch; start = time.process_time(); import lpcompile; print(time.process_time() - start)"
    seconds = [float(python("-c", code, cwd=tmp_path, path=ROOT).stdout) for _ in range(3)]
    assert statistics.median(seconds) < 0.2, seconds


def test_a_wheel_holds_every_data_file(wheel: Path) -> None:
    """Whatever is no Python and no README is read at run time: templates, styles, scripts, the mark of types."""
    left = {".py", ".pyc", ".md"}
    data = {
        f"{prefix}{path.relative_to(ROOT).as_posix()}"
        for folder, prefix in (("lpcompile", ""), ("passes", "lpcompile/"), ("runtime", "lpcompile/"))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in left
    }
    assert len(data) >= 7 and data <= contents(wheel), data - contents(wheel)
