"""The layers of the house: which room may import which. Lazy imports and imports for types count like any other, and so
does `importlib.import_module` with a module's full name.

    errors ← core ← passes | runtime ← planning ← front door ← tools ← cli

`passes` and `runtime` never import each other. The front door is `lpcompile/__init__`, `compile` and `program`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.fresh_python import printed

ROOT = Path(__file__).resolve().parents[1]
BASE = ("errors", "core")
COMPILER = (*BASE, "passes", "runtime", "planning", "front")
TOOLS = ("emit", "simulate", "training", "zoo", "bench", "compare", "report", "study", "paper", "integrations")
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
    "integrations": COMPILER,
    "zoo": (*COMPILER, "draw", "emit", "sources"),
    "report": (*COMPILER, "draw", "emit", "simulate"),
    "compare": (*COMPILER, "draw", "simulate", "sources", "training"),
    "bench": (*COMPILER, "draw", "simulate", "sources", "training"),
    "paper": (*COMPILER, "compare", "draw", "models", "report", "simulate", "sources", "study", "training"),
    "study": (*COMPILER, "draw", "models", "simulate", "sources", "training"),
    "cli": (*COMPILER, *TOOLS, "study", "draw", "sources", "models"),
}
FRONT = ("", "__main__", "compile", "program", "trainable", "__init__")


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
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
        bare = [name for name in names if name.partition(".")[0] in ("passes", "runtime")]
        assert not bare, (
            f"{path}:{node.lineno}: {bare[0]} is imported as lpcompile.{bare[0]}, elsewhere it is not there"
        )
        found |= {
            (n.removeprefix("lpcompile").removeprefix("."), node.lineno)
            for n in names
            if n.partition(".")[0] == "lpcompile"
        }
    return found


KNOWN = modules()


@pytest.mark.parametrize(
    "code, found",
    [
        ("import lpcompile.passes.split.cuts", "passes.split.cuts"),
        ("from lpcompile.passes.split import cuts", "passes.split.cuts"),
        ("from lpcompile.passes.split.cuts import Cut", "passes.split.cuts"),
        ("def f():\n    from lpcompile.passes.split.cuts import Cut", "passes.split.cuts"),
        ("if TYPE_CHECKING:\n    from lpcompile.passes.split.cuts import Cut", "passes.split.cuts"),
        ("importlib.import_module('lpcompile.passes.split.cuts')", "passes.split.cuts"),
        ("from lpcompile import parallelize", ""),
    ],
)
def test_an_import_is_found_wherever_it_stands(code: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(code)
    assert {name for name, _ in imports(tmp_path / "module.py", KNOWN)} == {found}


@pytest.mark.parametrize("code", ["from passes.split import cuts", "import runtime", "from . import cuts"])
def test_only_full_names_are_imported(code: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(code)
    with pytest.raises(AssertionError, match="is imported as lpcompile|relative import"):
        imports(tmp_path / "module.py", KNOWN)


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


def test_no_module_imports_a_private_name_of_another() -> None:
    private = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {alias.name}"
        for path in KNOWN.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lpcompile"
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert not private, private


TEMPLATES = ("emit.run_script",)  # copied into emitted folders, where it is a user's program


def test_every_room_says_what_it_and_its_modules_are_for_and_is_not_crowded() -> None:
    folders = {path.parent for path in KNOWN.values()} - {ROOT / "lpcompile", ROOT / "passes", ROOT / "runtime"}
    for folder in sorted(folders):
        text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))
        assert text and len(text) > 40, f"{folder.relative_to(ROOT)}/__init__.py does not say what the room is for"
        assert re.search(r"\b[Ii]mports?\b", text), (
            f"{folder.relative_to(ROOT)}/__init__.py does not say what it may import"
        )
        inside = {p.stem for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/__init__.py")}
        unnamed = sorted(m for m in inside - {"__init__"} if not re.search(rf"\b{m}\b", text))
        assert not unnamed, f"{folder.relative_to(ROOT)}/__init__.py does not say what {unnamed} are for"
        count = len(list(folder.glob("*.py"))) - 1
        assert count <= 15, f"{folder.relative_to(ROOT)} has {count} modules; about 15 are enough for a room"


def test_no_module_is_longer_than_a_person_reads_at_once() -> None:
    long = {str(p.relative_to(ROOT)): n for p in KNOWN.values() if (n := len(p.read_text().splitlines())) > 310}
    assert not long, long


IMPORT_ALL = """
import importlib, pkgutil, lpcompile
public = {name: getattr(lpcompile, name) for name in lpcompile.__all__}
for found in pkgutil.walk_packages(lpcompile.__path__, "lpcompile."):
    if found.name != "lpcompile.__main__":
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if not found.name.startswith("lpcompile.integrations.") or error.name.startswith("lpcompile"):
                raise  # only an integration may need a package that is not installed
print([name for name, value in public.items() if getattr(lpcompile, name) is not value])
"""


def test_importing_any_submodule_leaves_the_public_functions_in_place() -> None:
    assert printed(IMPORT_ALL) == "[]"


def test_no_submodule_has_the_name_of_something_that_its_package_defines() -> None:
    """`import lpcompile.load` would replace the function `lpcompile.load` by the module; so in every room."""
    hidden = []
    for module, path in KNOWN.items():
        if path.name == "__init__.py":
            named = {m.rpartition(".")[2] for m in KNOWN if m.rpartition(".")[0] == module and m}
            hidden += [f"lpcompile.{module}: {name}" for name in sorted(named & defined(path))]
    assert not hidden, hidden


def defined(path: Path) -> set[str]:
    """Names of a package that are not its own modules: what it defines, imports from modules, or lists as public."""
    found: set[str] = set()
    body = ast.parse(path.read_text()).body
    for node in [*body, *(inner for outer in body if isinstance(outer, ast.If) for inner in outer.body)]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            inside = {alias.asname or alias.name for alias in node.names}
            found |= {n for n in inside if f"{node.module}.{n}".removeprefix("lpcompile.") not in KNOWN}
        elif isinstance(node, ast.Assign) and any(ast.unparse(t) == "__all__" for t in node.targets):
            found |= set(ast.literal_eval(node.value)) - {"models"}
    return found


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


def test_the_runtime_reads_no_attribute_that_is_the_compilers_own() -> None:
    """Stages carry the compiler's records as `_lp...`; the runtime asks `core.stage_io` for them."""
    found = []
    for module, path in KNOWN.items():
        if room_of(module) == "runtime":
            nodes = ast.walk(ast.parse(path.read_text()))
            read = [n.attr if isinstance(n, ast.Attribute) else n.value for n in nodes if is_name(n)]
            found += [f"{path.relative_to(ROOT)}: {name}" for name in read if name.startswith("_lp")]
    assert not found, found


def is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
