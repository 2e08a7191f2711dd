"""`program.emit(DIR)`: the program as Python files, data and weights that run without the compiler.

Everything is written to a temporary folder beside DIR, which is renamed at the end: DIR is never half written.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from lpcompile.core.plan import Plan
from lpcompile.core.system import checksum
from lpcompile.emit.data import describe, unused, weights
from lpcompile.errors import UsageError
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.codegen.source import stage_source
from lpcompile.passes.codegen.text.names import prose
from lpcompile.passes.split.split import StageIO
from lpcompile.runtime.engine.schedules import default_schedule

MARKER_FILE = "model.json"  # a folder with this file, in our format, may be replaced
TITLES = {"stage": "Stage", "auxnet": "AuxNet", "head": "Head"}


def emit(program: Any, directory: str | Path, *, overwrite: bool = False) -> Path:
    """Write the program to `directory`; with `overwrite`, in place of one that emit wrote there before."""
    if not isinstance(program.captured, Captured):
        raise UsageError(
            "a program that was loaded from emitted code is not emitted again: copy its folder, or load its "
            "state_dict() into the model, compile that and emit it"
        )
    target = Path(directory).resolve()
    check_target(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _write(program, made)
        made.chmod(0o755)
        _put_in_place(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(made.with_name(f"{made.name}-before"), ignore_errors=True)
    return target


def run_files(program: Any) -> dict[str, str]:
    """The files for training: the entry point for torchrun, and the schedule if the method has one."""
    files = {"run.py": Path(__file__).with_name("run_script.py").read_text()}
    schedule = default_schedule(program.plan)
    if schedule is not None:
        files["schedule.json"] = json.dumps(schedule.to_json(), indent=1) + "\n"
    return files


def program_parts(program: Any) -> dict[str, Any]:
    """The modules by the name of their file: stages, and AuxNets or heads."""
    parts = {f"stage_{k}": stage for k, stage in enumerate(program.stages)}
    parts |= {f"auxnet_{k}": aux for k, aux in enumerate(() if program.plan.heads else program.auxnets)}
    return parts | {f"head_{k}": head for k, head in enumerate(program.heads if program.plan.heads else ())}


def check_target(target: Path, overwrite: bool) -> None:
    """Refuse a folder that cannot be written to; called before compiling, which takes longer."""
    place = next(p for p in (target, *target.absolute().parents) if p.exists())
    if not os.access(place, os.W_OK) or not place.is_dir():
        raise UsageError(f"{place} is {'not writable' if place.is_dir() else 'a file'}; give a folder to write to")
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"{target} is a file; give a folder to write to")
    if not any(target.iterdir()):
        return
    if not _is_ours(target):
        raise UsageError(f"{target} is not empty and was not written by emit; give a new or an empty folder")
    if not overwrite:
        raise UsageError(
            f"{target} holds a program already; pass overwrite=True (--force) to replace it, or give another folder"
        )


def _is_ours(target: Path) -> bool:
    try:
        return bool(json.loads((target / MARKER_FILE).read_text())["format"] == "lpcompile program")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _put_in_place(made: Path, target: Path) -> None:
    if not target.exists():
        made.rename(target)
        return
    if not any(target.iterdir()):  # an empty folder may be the working directory: fill it, the marker last
        for file in sorted(made.iterdir(), key=lambda f: f.name == MARKER_FILE):
            file.rename(target / file.name)
        return
    before = made.with_name(f"{made.name}-before")
    target.rename(before)
    try:
        made.rename(target)
    except BaseException:
        before.rename(target)
        raise
    shutil.rmtree(before)


def _write(program: Any, folder: Path) -> None:
    parts, plan = program_parts(program), program.plan
    for name, part in parts.items():
        (folder / f"{name}.py").write_text(part_source(program, name, part))
    (folder / "weights").mkdir()
    for name, part in parts.items():
        for suffix, tensors in zip(("", ".buffers"), weights(part), strict=True):
            if tensors or not suffix:
                save_file(tensors, folder / "weights" / f"{name}{suffix}.safetensors")
    rest = unused(program.module, parts)
    if rest:
        save_file(rest, folder / "weights" / "unused.safetensors")
    plan.save(folder / "plan.json")
    (folder / "support.py").write_text(Path(__file__).with_name("support.py").read_text())
    (folder / "README.md").write_text(_readme(program, parts))
    for name, text in run_files(program).items():
        (folder / name).write_text(text)
    data = sorted(f"weights/{file.name}" for file in (folder / "weights").iterdir())
    data += sorted(file.name for file in folder.glob("*.json"))
    code = sorted(file.name for file in folder.glob("*.py"))
    described = {**describe(program, parts), "checksums": checksum.sums(folder, data)}
    described["code"] = checksum.sums(folder, code)
    described[checksum.OWN] = checksum.of_data(described)
    (folder / MARKER_FILE).write_text(json.dumps(described, indent=1) + "\n")


def part_source(program: Any, name: str, part: Any) -> str:
    """The source of one of `program_parts`."""
    kind, _, k = name.partition("_")
    title = f"{TITLES[kind]}{k}"
    origin = getattr(part, "_lp_origin", ()) or (program.module,)
    return stage_source(part, origin[0], title, part_doc(program, kind, int(k), part))


def part_doc(program: Any, kind: str, k: int, part: Any) -> list[str]:
    """The docstring of a part: its place in the plan, its inputs and its outputs."""
    plan: Plan = program.plan
    stage = plan.stages[k]
    units = [u.name for u in plan.units[stage.first : stage.last + 1]]
    span = units[0] if len(units) == 1 else f"{units[0]} to {units[-1]}"
    if kind == "stage":
        lines = [f"Stage {k} of {plan.K} of {plan.model}: {span}.", ""]
    elif kind == "head":
        lines = [f"Head {k} of {plan.model}: a small network from what stage {k}, {span}, gives to the outputs.", ""]
        lines += aux_doc(plan, k)
    else:
        lines = [f"AuxNet {k} of {plan.model}: a small network in the place of stage {k}, {span}.", ""]
        lines += aux_doc(plan, k)
    lines.append(f"plan.json: stages[{k}], units {stage.first} to {stage.last}.")
    if k < len(plan.boundaries):
        lines.append(f"The boundary after it: boundaries[{k}], after {plan.boundaries[k].after}.")
    names = [name for name, _ in program.captured._lp.signature.inputs]
    specs = [spec for _, spec in program.captured._lp.signature.inputs]
    modes: dict[bool, StageIO] = part._lp_io
    for mode, io in modes.items() if modes[True] != modes[False] else [(True, modes[True])]:
        when = "" if modes[True] == modes[False] else (" (training)" if mode else " (evaluation)")
        lams = ["lam"] if len(io.lams) == 1 else [f"lam_{i}" for i in range(len(io.lams))]
        takes = [f"{n}: {s}" for n, s in zip(lams, io.lams, strict=True)]
        takes += [f"{names[i]}: {specs[i]}" for i in io.inputs]
        gives = [str(s) for s in io.boundary] + [f"output {i} of the model" for i in io.outputs]
        lines += ["", f"Takes{when}: {', '.join(takes)}.", f"Gives{when}: {', '.join(gives)}."]
    return lines


def aux_doc(plan: Plan, k: int) -> list[str]:
    """The docstring's lines on how an AuxNet was derived and what it costs."""
    aux = plan.boundaries[k].aux
    if aux is None:
        return []
    made = [f"keeps {', '.join(aux.kept) or 'none'} of {len(aux.kept) + len(aux.dropped)} blocks"]
    made += [f"thinned: {', '.join(aux.thinned)}"] if aux.thinned else []
    made = [aux.made] if aux.made else made
    lines = textwrap.wrap(f"{aux.kind}, {aux.init}; {'; '.join(made)}.", 100)
    return [*lines, f"It costs {100 * aux.share:.1f} % of the stage and runs on rank {aux.rank}."]


def _readme(program: Any, parts: dict[str, Any]) -> str:
    plan = program.plan
    names = [name for name, _ in program.captured._lp.signature.inputs]
    nets = ""
    if "auxnet_0" in parts:
        nets = "- `auxnet_0.py` ...: the networks that make the auxiliary variables"
    elif "head_0" in parts:
        nets = "- `head_0.py` ...: the networks that give every stage a loss of its own"
    schedule = "; `schedule.json`: what each rank does in a step" if "schedule.json" in run_files(program) else ""
    return f"""# {prose(plan.model)} in {plan.K} stages

Written by `lpcompile emit`. Stage k takes the tensors of the boundary before it (`lam`) and those model inputs that it
needs itself, and gives the tensors of the boundary after it; run one after another they are the model, bitwise.

- `stage_0.py` ... `stage_{plan.K - 1}.py`: one module a stage, under the model's own names
{nets}
- `weights/`: safetensors with the model's own keys (`*.buffers.safetensors`: what its state_dict leaves out)
- `plan.json`: what went where, and what it costs; `model.json`: inputs, outputs and specs
- `run.py`: trains it, under torchrun or in one process{schedule}
- `support.py`: loads weights and runs the stages one after another, with torch and safetensors alone

```python
from support import load_stages, serial  # in this folder

stages = load_stages()
out = serial(stages, {", ".join(names)})
```

With lpcompile installed, `program = lpcompile.load("this folder")` gives the program back, and
`torchrun --nproc-per-node {plan.world} run.py` trains it (`python run.py --help`).
""".replace("\n\n\n", "\n\n")
