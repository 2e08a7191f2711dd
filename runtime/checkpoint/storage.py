"""Storage in safetensors files and JSON, read by torch.distributed.checkpoint: nothing in it is ever unpickled.

Each rank writes one file; `index.json` has the file of each tensor. All are on disk (fsync) before they count.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from lpcompile.core.system.atomic_file import sync
from lpcompile.errors import UsageError

INDEX = "index.json"


def write_tensors(folder: Path, rank: int, tensors: dict[str, torch.Tensor]) -> str:
    """Write a rank's tensors, each with memory of its own; gives the name of the file."""
    own: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        own[name] = value.clone() if value.data_ptr() == tensor.data_ptr() else value
    file = f"rank{rank}.safetensors"
    save_file(own, folder / file)
    sync(folder / file)
    return file


class Reader(StorageReader):
    """Reads what `write_tensors` wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        found = read_json(folder / INDEX)
        if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
            raise UsageError(f"{folder / INDEX} is broken: it does not give the file of each tensor")
        self.files: dict[str, str] = found

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        found: dict[str, Any] = {}
        for file in sorted(set(self.files.values())):
            with self._open(file) as opened:
                for name in opened.keys():  # noqa: SIM118
                    part = opened.get_slice(name)
                    size = torch.Size(part.get_shape())
                    chunk = ChunkStorageMetadata(torch.Size([0] * len(size)), size)
                    dtype = DTYPES[part.get_dtype()]
                    found[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), size, [chunk])
        return Metadata(found, storage_data={MetadataIndex(n): f for n, f in self.files.items()})

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[Any]] = {}
        for item in plan.items:
            by_file.setdefault(self.files[item.storage_index.fqn], []).append(item)
        for file, items in by_file.items():
            with self._open(file) as opened:
                for item in items:
                    target = planner.resolve_tensor(item)
                    target.copy_(opened.get_tensor(item.storage_index.fqn))
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _open(self, file: str) -> Any:
        if Path(file).name != file or not file.endswith(".safetensors"):
            raise UsageError(f"{self.folder / INDEX} names the file {file!r}, which is not one of its own")
        return safe_open(self.folder / file, "pt")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def write_json(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data))
    sync(file)


def read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read as part of a checkpoint: {error}") from None
