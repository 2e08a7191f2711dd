# lpcompile copies this file, unchanged, into every folder that it emits.
"""Load the stages of this folder and run them one after another, with torch and safetensors alone.

>>> stages = load_stages()
>>> out = serial(stages, x)
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

HERE = Path(__file__).parent


def load_stages(folder: Path = HERE, training: bool = True) -> list[nn.Module]:
    """Every stage with its weights; parameters that stages share are one tensor again."""
    model = json.loads((folder / "model.json").read_text())
    stages = [load_part(f"stage_{k}", folder) for k in range(model["K"])]
    parts = {f"stage_{k}": stage for k, stage in enumerate(stages)}
    share(model["shared"], parts)
    tie(model["ties"], parts)
    return [stage.train(training) for stage in stages]


def load_part(name: str, folder: Path = HERE) -> nn.Module:
    """The module of `stage_0` (or `auxnet_0`, ...) with its weights."""
    made: nn.Module = make_part(name, folder)
    model = json.loads((folder / "model.json").read_text())
    fill(made, load_tensors(name, folder), model["strides"].get(name, {}))
    tie(model["ties"], {name: made})
    return made


def make_part(name: str, folder: Path = HERE, module: str | None = None) -> Any:
    """The module that the file `name`.py defines, without weights."""
    spec = importlib.util.spec_from_file_location(module or name, folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    kind, _, k = name.partition("_")
    with torch.device("meta"):
        return getattr(found, {"stage": "Stage", "auxnet": "AuxNet", "head": "Head"}[kind] + k)()


def load_tensors(name: str, folder: Path = HERE) -> dict[str, torch.Tensor]:
    """Tensors of a part, each copied out of the file: some CPU kernels add in another order at unaligned addresses."""
    files = (folder / "weights" / f"{name}.safetensors", folder / "weights" / f"{name}.buffers.safetensors")
    known = json.loads((folder / "model.json").read_text()).get("checksums", {})
    for file in files:
        expected = known.get(f"weights/{file.name}")
        if expected and hashlib.sha256(file.read_bytes()).hexdigest() != expected["sha256"]:
            raise ValueError(f"{file} is damaged: it has another SHA-256 than when it was written; emit it again")
    return {key: tensor.clone() for file in files if file.exists() for key, tensor in load_file(file).items()}


def fill(module: nn.Module, tensors: dict[str, torch.Tensor], strides: dict[str, list[int]]) -> None:
    """Set tensors by name; parameters keep `requires_grad`."""
    for key, tensor in tensors.items():
        if key in strides:
            laid = torch.empty_strided(tensor.shape, strides[key], dtype=tensor.dtype)
            tensor = laid.copy_(tensor)
        put(module, key, tensor)


def at(module: nn.Module, path: str) -> nn.Module:
    """The module at a path. Unlike `get_submodule` it takes any names."""
    for name in path.split(".") if path else ():
        module = module._modules[name]  # type: ignore[assignment]
    return module


def put(module: nn.Module, key: str, tensor: torch.Tensor) -> None:
    """Set the parameter, buffer or tensor attribute `key`."""
    path, _, name = key.rpartition(".")
    module = at(module, path)
    if name in module._parameters:
        before = module._parameters[name]
        if not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=before is None or before.requires_grad)
        if isinstance(module, nn.RNNBase):  # it keeps its weights in a list too, which only setattr renews
            setattr(module, name, tensor)
        module._parameters[name] = tensor
    elif name in module._buffers:
        module._buffers[name] = tensor
    else:
        object.__setattr__(module, name, tensor)


def get(module: nn.Module, key: str) -> Any:
    """The parameter, buffer or attribute `key`, or None."""
    path, _, name = key.rpartition(".")
    module = at(module, path)
    return next((d[name] for d in (module._parameters, module._buffers) if name in d), module.__dict__.get(name))


def tie(ties: list[list[list[str]]], parts: dict[str, nn.Module]) -> None:
    """Tie the names of each group to one tensor."""
    for group in ties:
        here = [(parts[part], key) for part, key in group if part in parts]
        for module, key in here[1:]:
            put(module, key, get(*here[0]))


def share(shared: list[list[list[str]]], parts: dict[str, nn.Module]) -> None:
    """Make the names of each group one module: a layer that several stages call."""
    for group in shared:
        here = [(parts[part], key) for part, key in group if part in parts]
        for module, key in here[1:]:
            path, _, name = key.rpartition(".")
            at(module, path)._modules[name] = at(*here[0])


def serial(stages: list[nn.Module], *inputs: torch.Tensor, folder: Path = HERE) -> Any:
    """The model's outputs, as a flat list or a single tensor, from its inputs in the order of model.json."""
    model = json.loads((folder / "model.json").read_text())
    lam: tuple[torch.Tensor, ...] = ()
    outputs: dict[int, torch.Tensor] = {}
    for k, stage in enumerate(stages):
        io = model["io"][f"stage_{k}"]["training" if stage.training else "evaluation"]
        result = stage(*lam, *(inputs[i] for i in io["inputs"]))
        values = result if isinstance(result, tuple) else (result,)
        lam = values[: len(io["boundary"])]
        outputs.update(zip(io["outputs"], values[len(lam) :], strict=True))
    flat = [outputs[i] for i in range(len(outputs))]
    return flat[0] if len(flat) == 1 else flat
