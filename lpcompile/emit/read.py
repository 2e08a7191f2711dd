"""`lpcompile.load(DIR)`: the program that `emit` wrote, from its code and data; nothing is unpickled."""

from __future__ import annotations

import itertools
import json
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from lpcompile.core.plan import Plan
from lpcompile.core.system import checksum
from lpcompile.emit.data import FORMAT_VERSION, MODES, io_from_json, signature_from_json
from lpcompile.emit.json_values import decode, tree_from_json
from lpcompile.emit.support import at, get, load_tensors, make_part, put, share, tie
from lpcompile.errors import EmitError, InputError, LpError, UsageError
from lpcompile.passes.auxnet.derive import AuxNet
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.signature import Signature
from lpcompile.passes.graph.module import follow, install, refresh
from lpcompile.passes.graph.tree import Tree
from lpcompile.passes.split.split import Stage, StageIO
from lpcompile.program import Compiled, Program

log = logging.getLogger("lpcompile")
_AGAIN = "emit the program again"
MODEL = "model.json"
_serial = itertools.count()


@dataclass(frozen=True)
class LoadedInfo:
    """The part of `CaptureInfo` that a program without its traced model has."""

    model: nn.Module
    signature: Signature
    trees: dict[bool, Tree]
    notes: tuple[str, ...]
    written: tuple[str, ...]
    batch_free: bool
    attribute_guard: Unguarded


class Unguarded:
    """A loaded program has no traced modules that could change under it."""

    def changed(self, mode: bool) -> None:
        return None


class LoadedCapture:
    """Takes the place of the captured graph of a compiled program."""

    def __init__(self, info: LoadedInfo) -> None:
        self._lp = info

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a loaded program has no undivided graph ({name!r}); compile the model itself for that")


class LoadedModel(nn.Module):
    """The emitted model. Modules that its own `train` kept in the other mode stay in it."""

    _lp_frozen: dict[str, list[str]]

    def train(self, mode: bool = True) -> LoadedModel:
        super().train(mode)
        frozen = set(self._lp_frozen.get(MODES[mode], ()))
        for path, module in self.named_modules():
            if path in frozen:
                module.training = not mode
        return self


class LoadedStage:
    """Mixin that makes an emitted module a stage."""

    _lp_io: dict[bool, StageIO]
    _lp_own: tuple[nn.Module, ...]
    _lp_links: list[Any]
    training: bool

    def _lp_use_mode(self, training: bool) -> None:
        """Switch the methods without touching the flags of the layers."""
        for module in self._lp_own:
            module.training = training

    def _lp_refresh(self) -> None:
        refresh(self._lp_links)


def load(directory: str | Path) -> Program:
    """The program in a folder that `program.emit` wrote: the same plan, outputs, gradients and keys, bitwise.

    It imports the Python files of the folder: load only what you would run. Code may be edited, which is said; a file
    of weights or data that is not as it was written is refused.
    """
    folder = Path(directory)
    data = _model_json(folder)
    reason = checksum.damage(folder, data.get("checksums", {}), MODEL)
    if reason is not None:
        raise EmitError(f"{folder} is damaged: {reason}; {_AGAIN}")
    plan = Plan.load(folder / "plan.json")
    if plan.hash != data.get("plan"):
        raise EmitError(f"{folder / 'plan.json'} is not the plan that this folder was emitted with; {_AGAIN}")
    changed = checksum.damage(folder, data.get("code", {}), MODEL)
    if changed is not None:
        log.warning("%s: %s; %s unless you edited it", folder, changed, _AGAIN)
    try:
        return _load(folder, data, plan)
    except LpError:
        raise
    except (ImportError, SyntaxError, NameError) as error:
        raise EmitError(
            f"the code in {folder} cannot be imported ({type(error).__name__}: {error}); install the package that the "
            f"model's layers come from, or {_AGAIN}"
        ) from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError) as error:
        what = f"{folder}: {changed}" if changed is not None else f"{folder / 'model.json'} is broken"
        raise EmitError(f"{what} ({type(error).__name__}: {error}); {_AGAIN}") from error


def damage(folder: Path) -> str | None:
    """The file of an emitted program whose checksum is another one, and why it is not whole; None if it is."""
    try:
        data = _model_json(folder)
        found = (checksum.damage(folder, data.get(kind, {}), MODEL) for kind in ("checksums", "code"))
        return next((reason for reason in found if reason is not None), None)
    except LpError as error:
        return str(error)


def _model_json(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; give one that program.emit wrote")
    try:
        data = json.loads((folder / "model.json").read_text())
    except OSError:
        raise EmitError(
            f"{folder} has no model.json, so emit did not write it; give a folder that emit wrote"
        ) from None
    except (ValueError, RecursionError) as error:
        raise EmitError(f"{folder / 'model.json'} is not JSON ({error}); {_AGAIN}") from None
    if not isinstance(data, dict) or data.get("version") != FORMAT_VERSION:
        version = data.get("version") if isinstance(data, dict) else None
        reads = f"this lpcompile reads {FORMAT_VERSION}"
        raise EmitError(f"{folder} has version {version!r} of the format, {reads}; {_AGAIN}")
    if data.get(checksum.OWN, checksum.of_data(data)) != checksum.of_data(data):
        raise EmitError(f"{folder / 'model.json'} has another SHA-256 than when it was written; {_AGAIN}")
    return data


def _load(folder: Path, data: dict[str, Any], plan: Plan) -> Program:
    odd = [name for name in data["io"] if not re.fullmatch(r"(stage|auxnet|head)_\d+", name)]
    if odd:
        raise EmitError(f"{folder / 'model.json'} names {odd[0]!r}, which emit does not write; {_AGAIN}")
    parts = {name: _part(folder, name, data) for name in data["io"]}
    share(data["shared"], parts)
    tie(data["ties"], parts)
    stages = [parts[f"stage_{k}"] for k in range(data["K"])]
    rest = folder / "weights" / "unused.safetensors"
    model = _reassemble(plan.model, data["modules"], stages, load_file(rest) if rest.exists() else {})
    model.__dict__["_lp_frozen"] = data.get("frozen_modes", {})
    model.training = data["training"]
    for path, module in model.named_modules():
        module.training = data["modes"].get(path, data["training"])
    for part in parts.values():
        for path, module in part.named_modules() if part not in stages else ():
            module.training = data["modes"].get(path, data["training"])
        part.__dict__["_lp_links"] = follow(part, model) if part in stages else []
        part._lp_use_mode(data["training"])
    trees = {mode: tree_from_json(data["outputs"][name]) for mode, name in MODES.items()}
    info = LoadedInfo(
        model,
        signature_from_json(data["signature"]),
        trees,
        tuple(data["notes"]),
        tuple(data["written"]),
        data["batch_free"],
        Unguarded(),
    )
    kind, what = ("head", "heads") if plan.heads else ("auxnet", "AuxNets")
    nets = cast("tuple[AuxNet, ...]", tuple(parts[f"{kind}_{k}"] for k in range(len(parts) - len(stages))))
    needed = plan.aux or plan.heads  # others are written for whoever wants them
    if len(nets) != plan.K - 1 and (nets or needed):
        raise EmitError(f"{folder} has {len(nets)} {what}, its plan another number; {_AGAIN}")
    if list(model.state_dict()) != data["keys"]:
        raise EmitError(f"the stages in {folder} do not add up to the model that was emitted; {_AGAIN}")
    captured, parts_ = cast(Captured, LoadedCapture(info)), cast("tuple[Stage, ...]", tuple(stages))
    done = Compiled(captured, plan, parts_, () if plan.heads else nets, nets if plan.heads else None)
    program = Program(model, _cannot_compile, _cannot_compile)
    program.__dict__.update(_lp_done=done, _lp_variants={decode(data["call_state"]): done})
    return program


def _cannot_compile(*_: Any) -> NoReturn:
    raise InputError(
        "a loaded program runs as it was compiled: the same autocast, the same inputs with gradients; "
        "for another call compile the model again"
    )


def _part(folder: Path, name: str, data: dict[str, Any]) -> Any:
    """A stage or AuxNet with its weights, checked name by name."""
    for file in (folder / f"{name}.py", folder / "weights" / f"{name}.safetensors"):
        if not file.exists():
            raise EmitError(f"{file} is missing; {_AGAIN}")
    part = make_part(name, folder, f"lpcompile_emitted_{next(_serial)}_{name}")
    try:
        tensors = load_tensors(name, folder)
    except (SafetensorError, OSError) as error:
        raise EmitError(f"the weights of {name} in {folder} cannot be read ({error}); {_AGAIN}") from None
    strides = data["strides"].get(name, {})
    for key, tensor in tensors.items():
        place = _place(part, key)
        if place is None or place.shape != tensor.shape or place.dtype != tensor.dtype:
            found = "no such name" if place is None else f"{place.dtype}{tuple(place.shape)}"
            raise EmitError(
                f"weights/{name} has {key} as {tensor.dtype}{tuple(tensor.shape)}, {name}.py has {found}; {_AGAIN}"
            )
        if key in strides:
            tensor = torch.empty_strided(tensor.shape, strides[key], dtype=tensor.dtype).copy_(tensor)
        put(part, key, tensor)
    tie(data["ties"], {name: part})
    empty = [n for n, t in [*part.named_parameters(), *part.named_buffers()] if t.device.type == "meta"]
    if empty:
        raise EmitError(f"the weights of {name} lack {empty[0]} (and {len(empty) - 1} more); {_AGAIN}")
    kind = type(part)
    part.__class__ = type(kind.__name__, (LoadedStage, kind), {"__module__": kind.__module__})
    own = tuple(m for m in part.modules() if type(m).__module__ == kind.__module__ or m is part)
    io = {mode: io_from_json(data["io"][name][key]) for mode, key in MODES.items()}
    part.__dict__.update(_lp_io=io, _lp_own=own, _lp_links=[])
    return part


def _place(part: nn.Module, key: str) -> torch.Tensor | None:
    try:
        found = get(part, key)
    except KeyError:
        return None
    return found if isinstance(found, torch.Tensor) else None


def _reassemble(
    name: str, modules: list[dict[str, Any]], stages: list[nn.Module], rest: dict[str, torch.Tensor]
) -> nn.Module:
    """The model's module tree, in its order: layers are those of the stages, containers plain modules."""
    model: nn.Module = type(name if name.isidentifier() else "Model", (LoadedModel,), {})()
    layers: dict[str, nn.Module] = {}
    for stage in stages:
        layers.update({p: m for p, m in stage.named_modules(remove_duplicate=False) if _is_layer(m)})
    aliases = _aliases(modules, layers)
    for entry in modules:
        path = entry["path"]
        above = _prefixes(path)
        if any(p in layers or p in aliases for p in above):
            continue  # inside a layer, or below an alias
        if path in layers and path not in aliases:
            install(model, path, layers[path])
            continue
        if path:
            install(model, path, nn.Module())
        if path in aliases:
            continue
        owner = at(model, path)
        owner._non_persistent_buffers_set.update(entry.get("transient", ()))
        for kind, registry in (("parameters", owner._parameters), ("buffers", owner._buffers)):
            for field in entry.get(kind, ()):
                key = f"{path}.{field}" if path else field
                registry[field] = _find(stages, key, rest.get(key))
    for path in (p for p in aliases if not any(q in aliases for q in _prefixes(p))):  # others come with their parent's
        parent, _, name = path.rpartition(".")
        at(model, parent)._modules[name] = at(model, aliases[path])
    return model


def _aliases(modules: list[dict[str, Any]], layers: dict[str, nn.Module]) -> dict[str, str]:
    """Aliases of modules, each with the path where the module is built: the one that the stages use."""
    groups: dict[str, list[str]] = {}
    for entry in modules:
        if "same" in entry:
            groups.setdefault(entry["same"], [entry["same"]]).append(entry["path"])
    used = {p for path in layers for p in (path, *_prefixes(path))}
    found = {}
    for first, paths in groups.items():
        home = next((p for p in paths if p in used), first)
        found.update({p: home for p in paths if p != home})
    return found


def _prefixes(path: str) -> list[str]:
    names = path.split(".") if path else []
    return [".".join(names[:n]) for n in range(1, len(names))]


def _is_layer(module: nn.Module) -> bool:
    """Whether it is a layer: containers are classes of the emitted file or torch's plain ones."""
    plain = (nn.Module, nn.Sequential, nn.ModuleList, nn.ModuleDict)
    return type(module) not in plain and not type(module).__module__.startswith("lpcompile_emitted_")


def _find(stages: list[nn.Module], key: str, default: Any) -> Any:
    return next((t for t in (_place(stage, key) for stage in stages) if t is not None), default)
