"""The data of an emitted program: `model.json` and the weights."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import nn

from lpcompile.core.stage_io import TensorSpec
from lpcompile.emit.json_values import OPAQUE, decode, encode, tree_from_json, tree_to_json
from lpcompile.errors import EmitError
from lpcompile.passes.capture.signature import Signature
from lpcompile.passes.split.split import StageIO

FORMAT_VERSION = 1
MODES = {True: "training", False: "evaluation"}
Tensors = dict[str, torch.Tensor]


def describe(program: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """The contents of `model.json`: everything that `load` needs besides code and weights."""
    import lpcompile

    info = program.captured._lp
    state = next(s for s, done in program._lp_variants.items() if done is program._ready())
    return {
        "format": "lpcompile program",
        "version": FORMAT_VERSION,
        "lpcompile": lpcompile.__version__,
        "torch": torch.__version__.split("+")[0],
        "model": program.plan.model,
        "K": program.plan.K,
        "plan": program.plan.hash,
        "signature": signature_to_json(info.signature),
        "outputs": {MODES[m]: tree_to_json(tree, "the model's output") for m, tree in info.trees.items()},
        "call_state": encode(state, "the call"),
        "notes": list(info.notes),
        "written": list(info.written),
        "batch_free": info.batch_free,
        "io": {n: {MODES[m]: io_to_json(io) for m, io in part._lp_io.items()} for n, part in parts.items()},
        "training": program.module.training,
        "modes": {p: m.training for p, m in program.module.named_modules() if m.training != program.module.training},
        "frozen_modes": frozen_modes(program.module),
        "modules": modules_to_json(program.module),
        "keys": list(program.module.state_dict()),
        "shared": shared(parts),
        "ties": ties(parts),
        "strides": {name: strides(part) for name, part in parts.items()},
    }


def frozen_modes(model: nn.Module) -> dict[str, list[str]]:
    """Modules that stay in the other mode after `model.train()` and after `model.eval()`, where a module has its own
    `train` (to keep BatchNorm frozen, say). It is called on a copy without data: it may also change weights.
    """
    if all(type(m).train is nn.Module.train for m in model.modules()):
        return {}
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        empty = tensor.detach().to("meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    twin = copy.deepcopy(model, memo)
    found = {}
    for mode, name in MODES.items():
        twin.train(mode)
        found[name] = [path for path, module in twin.named_modules() if module.training != mode]
    return found


def modules_to_json(model: nn.Module) -> list[dict[str, Any]]:
    """The model's modules in order, with the names of their tensors; `same` marks an alias of an earlier module."""
    first: dict[int, str] = {}
    entries = []
    for path, module in model.named_modules(remove_duplicate=False):
        entry: dict[str, Any] = {"path": path}
        if first.setdefault(id(module), path) != path:
            entry["same"] = first[id(module)]
        for key, names in (("parameters", module._parameters), ("buffers", module._buffers)):
            if names:
                entry[key] = list(names)
        if module._non_persistent_buffers_set:
            entry["transient"] = sorted(module._non_persistent_buffers_set)
        entries.append(entry)
    return entries


def signature_to_json(signature: Signature) -> dict[str, Any]:
    parameters = []
    for name, p in signature.parameters.parameters.items():
        entry: dict[str, Any] = {"name": name, "kind": p.kind.name}
        if p.default is not p.empty:
            try:
                entry["default"] = encode(p.default, "a default")
            except EmitError:
                entry["default"] = {OPAQUE: True}
        parameters.append(entry)
    return {
        "parameters": parameters,
        "trees": {name: tree_to_json(tree, f"the input {name!r}") for name, tree in signature.trees.items()},
        "inputs": [{"name": name, "spec": spec.to_json()} for name, spec in signature.inputs],
    }


def signature_from_json(data: dict[str, Any]) -> Signature:
    parameters = []
    for p in data["parameters"]:
        default = decode(p["default"]) if "default" in p else inspect.Parameter.empty
        parameters.append(inspect.Parameter(p["name"], inspect._ParameterKind[p["kind"]], default=default))
    trees = {name: tree_from_json(tree) for name, tree in data["trees"].items()}
    inputs = tuple((i["name"], TensorSpec.from_json(i["spec"])) for i in data["inputs"])
    return Signature(inspect.Signature(parameters), trees, inputs)


def io_to_json(io: StageIO) -> dict[str, Any]:
    return {
        "lams": [s.to_json() for s in io.lams],
        "inputs": list(io.inputs),
        "boundary": [s.to_json() for s in io.boundary],
        "outputs": list(io.outputs),
    }


def io_from_json(data: dict[str, Any]) -> StageIO:
    lams, boundary = (tuple(TensorSpec.from_json(s) for s in data[k]) for k in ("lams", "boundary"))
    return StageIO(lams, tuple(data["inputs"]), boundary, tuple(data["outputs"]))


def named_tensors(part: nn.Module) -> dict[str, tuple[torch.Tensor, bool]]:
    """Every tensor of a stage by name, aliases included, and whether it belongs to the state_dict.

    Tensors in plain attributes of a layer count too.
    """
    found: dict[str, tuple[torch.Tensor, bool]] = {}
    for path, module in part.named_modules(remove_duplicate=False):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise EmitError(
                f"{path} ({type(module).__name__}) keeps extra state of its own (get_extra_state), which a weights "
                f"file cannot hold; keep it in buffers"
            )
        prefix = f"{path}." if path else ""
        plain = {n: t for n, t in vars(module).items() if isinstance(t, torch.Tensor)}
        kept = {n: t for n, t in [*module._parameters.items(), *module._buffers.items()] if t is not None}
        for name, tensor in [*kept.items(), *plain.items()]:
            persistent = name in kept and name not in module._non_persistent_buffers_set
            found[f"{prefix}{name}"] = (tensor, persistent)
    return found


def weights(part: nn.Module) -> tuple[Tensors, Tensors]:
    """The tensors to store, each once: those of the state_dict under the model's keys, and the rest."""
    stored: tuple[Tensors, Tensors] = ({}, {})
    seen: set[int] = set()
    for key, (tensor, persistent) in sorted(named_tensors(part).items(), key=lambda item: (not item[1][1], item[0])):
        if tensor.device.type == "meta":
            raise EmitError(f"{key} has no values (meta device); load weights into the model before emit")
        if id(tensor) not in seen:
            seen.add(id(tensor))
            stored[not persistent][key] = tensor.detach().cpu().contiguous()
    return _unshared(stored[0]), _unshared(stored[1])


def unused(model: nn.Module, parts: dict[str, Any]) -> Tensors:
    """Tensors of the model that no stage has: buffers outside the state_dict that nothing reads."""
    known = {key for part in parts.values() for key in named_tensors(part)}
    entries = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return _unshared({k: t.detach().cpu().contiguous() for k, t in entries if k not in known})


def _unshared(tensors: Tensors) -> Tensors:
    """Copy tensors that share memory: safetensors refuses them."""
    count: dict[int, int] = {}
    for tensor in tensors.values():
        pointer = tensor.untyped_storage().data_ptr()
        count[pointer] = count.get(pointer, 0) + 1
    return {k: t.clone() if count[t.untyped_storage().data_ptr()] > 1 else t for k, t in sorted(tensors.items())}


def ties(parts: dict[str, Any]) -> list[list[list[str]]]:
    """Tied tensors: groups of names, as (part, key), of one tensor."""
    groups: dict[int, list[list[str]]] = {}
    for name, part in parts.items():
        for key, (tensor, _) in sorted(named_tensors(part).items(), key=lambda item: (not item[1][1], item[0])):
            groups.setdefault(id(tensor), []).append([name, key])
    return [group for group in groups.values() if len(group) > 1]


def shared(parts: dict[str, Any]) -> list[list[list[str]]]:
    """Shared layers: groups of names, as (part, path), of one module."""
    groups: dict[int, list[list[str]]] = {}
    for name, part in parts.items():
        for path, module in part.named_modules(remove_duplicate=False):
            if path and type(module) is not nn.Module:
                groups.setdefault(id(module), []).append([name, path])
    return [group for group in groups.values() if len(group) > 1]


def strides(part: nn.Module) -> dict[str, list[int]]:
    """Strides of tensors that are not contiguous (channels last): results depend on them."""
    return {k: list(t.stride()) for k, (t, _) in named_tensors(part).items() if not t.is_contiguous()}
