"""The layers of the house: which room may import which. Lazy imports and imports for types count like any other.

    errors ← core ← passes | runtime ← planning ← front door ← tools ← cli

`passes` and `runtime` never import each other. The front door is `lpcompile/__init__`, `compile` and `program`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BASE = ("errors", "core")
COMPILER = (*BASE, "passes", "runtime", "planning", "front")
TOOLS = ("emit", "simulate", "training", "zoo", "bench", "compare", "report")
ALLOWED = {
    "errors": (),
    "core": ("errors",),
    "passes": BASE,
    "runtime": BASE,
    "models": BASE,
    "draw": BASE,
    "planning": (*BASE, "passes", "runtime"),
    # Program.emit, Program.fit and lpcompile.load are methods and functions of the front door, done by these rooms.
    "front": (*BASE, "passes", "runtime", "planning", "models", "emit", "training", "draw"),
    "sources": (*BASE, "models"),
    "emit": COMPILER,
    "simulate": (*COMPILER, "draw", "sources"),
    "training": (*COMPILER, "sources", "models"),
    "zoo": (*COMPILER, "draw", "emit", "sources"),
    "report": (*COMPILER, "draw", "emit", "simulate"),
    "compare": (*COMPILER, "draw", "simulate", "sources", "training"),
    "bench": (*COMPILER, "draw", "simulate", "sources", "training"),
    "cli": (*COMPILER, *TOOLS, "draw", "sources", "models"),
}
FRONT = ("", "__main__", "compile", "program", "__init__")


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below `lpcompile`."""
    found = {}
    for folder in ("lpcompile", "passes", "runtime"):
        top = ROOT / folder
        for path in sorted(top.rglob("*.py")):
            inside = path.relative_to(top) if folder == "lpcompile" else path.relative_to(ROOT)
            if folder == "lpcompile" and inside.parts[0] in ("passes", "runtime"):
                continue  # links to the folders beside it
            found[".".join(inside.with_suffix("").parts).removesuffix(".__init__")] = path
    return found


def room_of(module: str) -> str:
    first = module.partition(".")[0]
    return "cli" if first == "__main__" else "front" if first in FRONT else first


def imports(path: Path, known: dict[str, Path]) -> set[tuple[str, int]]:
    """The modules of lpcompile that a file imports anywhere, with the line."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            base = node.module or ""
            below = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name.removeprefix("lpcompile.") in known else base for name in below]
        found |= {
            (n.removeprefix("lpcompile").removeprefix("."), node.lineno)
            for n in names
            if n.partition(".")[0] == "lpcompile"
        }
    return found


KNOWN = modules()


@pytest.mark.parametrize("room", sorted({room_of(m) for m in KNOWN}))
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    breaches = [
        f"{path.relative_to(ROOT)}:{line} imports lpcompile.{target}"
        for module, path in KNOWN.items()
        if room_of(module) == room and module not in TEMPLATES
        for target, line in sorted(imports(path, KNOWN))
        if room_of(target) != room and room_of(target) not in ALLOWED[room]
    ]
    assert not breaches, "\n".join(breaches)


TEMPLATES = ("emit.run_script",)  # copied into emitted folders, where it is a user's program


def test_every_room_says_what_it_is_for_and_is_not_crowded() -> None:
    folders = {path.parent for path in KNOWN.values()} - {ROOT / "lpcompile", ROOT / "passes", ROOT / "runtime"}
    for folder in sorted(folders):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert text and len(text) > 40, f"{folder.relative_to(ROOT)}/__init__.py does not say what the room is for"
        count = len(list(folder.glob("*.py"))) - 1
        assert count <= 17, f"{folder.relative_to(ROOT)} has {count} modules; about 15 are enough for a room"


def test_no_module_is_longer_than_a_person_reads_at_once() -> None:
    long = {str(p.relative_to(ROOT)): n for p in KNOWN.values() if (n := len(p.read_text().splitlines())) > 330}
    assert not long, long


def test_no_submodule_hides_a_public_function() -> None:
    import lpcompile

    functions = {name for name in lpcompile.__all__ if name != "models"}
    assert not functions & {module.partition(".")[0] for module in KNOWN}


def test_a_method_is_named_only_in_its_own_file() -> None:
    """Other rooms read a method's traits (`core.method.Method`); none compares its name."""
    from lpcompile.runtime.methods import METHODS

    names, breaches = set(METHODS), []
    for module, path in KNOWN.items():
        if module.startswith("runtime.methods"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare):
                inside = [n for part in (node.left, *node.comparators) for n in ast.walk(part)]
                if any(isinstance(n, ast.Constant) and n.value in names for n in inside):
                    breaches.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert not breaches, "\n".join(breaches)
