"""Plain data and tensors between ranks, as JSON and safetensors bytes: nothing that a peer sends is unpickled.

>>> exchange.gathered({"loss": 0.1, "weights": tensor}, group)      # a list with the value of each rank
"""

from __future__ import annotations

import json
import struct
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from lpcompile.runtime.checkpoint import plain
from lpcompile.runtime.launch import board

LENGTH = struct.Struct("<Q")  # of the JSON text, before it; the tensors follow


def gathered(value: Any, group: Any = None) -> list[Any]:
    """The values of all ranks of a group, in their order. All of them call it."""
    mine, world = _tensor(value, group), dist.get_world_size(group)
    with board.waiting():
        sizes = [torch.zeros(1, dtype=torch.int64, device=mine.device) for _ in range(world)]
        dist.all_gather(sizes, torch.tensor([len(mine)], device=mine.device), group=group)
        room = torch.zeros(max(int(n) for n in sizes), dtype=torch.uint8, device=mine.device)
        room[: len(mine)] = mine
        found = [torch.empty_like(room) for _ in range(world)]
        dist.all_gather(found, room, group=group)
    return [_value(data[: int(n)]) for data, n in zip(found, sizes, strict=True)]


def from_first(value: Any, group: Any = None) -> Any:
    """Rank 0's value on all ranks; those of the others are not looked at."""
    return from_rank(value, 0, group)


def from_rank(value: Any, rank: int, group: Any = None) -> Any:
    """One rank's value on all ranks; those of the others are not looked at."""
    first = dist.get_rank() == rank
    mine = _tensor(value if first else None, group)
    with board.waiting():
        size = torch.tensor([len(mine)], device=mine.device)
        dist.broadcast(size, rank, group=group)
        data = mine if first else torch.empty(int(size), dtype=torch.uint8, device=mine.device)
        dist.broadcast(data, rank, group=group)
    return _value(data)


def to_bytes(value: Any) -> bytes:
    """Numbers, texts, dtypes, tensors and containers of them (see `plain.flat`)."""
    tensors, data = plain.flat(value, "message")
    text = json.dumps(data).encode()
    packed = save({n: t.cpu().contiguous().clone() for n, t in tensors.items()}) if tensors else b""
    return LENGTH.pack(len(text)) + text + packed


def from_bytes(data: bytes) -> Any:
    end = LENGTH.size + LENGTH.unpack_from(data)[0]
    tensors = load(data[end:]) if len(data) > end else {}
    return plain.nested(json.loads(data[LENGTH.size : end]), tensors)


def _tensor(value: Any, group: Any) -> Tensor:
    data = torch.frombuffer(bytearray(to_bytes(value)), dtype=torch.uint8)
    return data.cuda() if dist.get_backend(group) == "nccl" else data


def _value(data: Tensor) -> Any:
    return from_bytes(data.cpu().numpy().tobytes())
