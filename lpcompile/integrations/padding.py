"""Texts of one length: a program is compiled for one, and collators pad each batch to its own longest text.

Positions that are added have a mask of 0 and the label -100, so that they change neither outputs nor loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

import torch
from torch import Tensor

from lpcompile.errors import UsageError

MAIN, MASK = "input_ids", "attention_mask"
MOST_SAMPLES = 200_000  # of a data set whose lengths are looked at
IGNORED = -100


def longest(datasets: list[Any], multiple: int | None, pad_to: int | None = None) -> dict[str, int]:
    """The length of the longest entry of each name, over all samples of these data sets; or `pad_to` for texts."""
    if pad_to is not None:
        return {MAIN: pad_to}
    found: dict[str, int] = {}
    for data in datasets:
        if data is None or not isinstance(data, Sized) or not hasattr(data, "__getitem__"):
            continue
        if len(data) > MOST_SAMPLES:
            raise UsageError(
                f"the data set has {len(data)} texts, too many to look for the longest; say how long texts are at most "
                f"(pad_to=512)"
            )
        if not len(data) or not isinstance(data[0], Mapping) or MAIN not in data[0]:
            continue
        for i in range(len(data)):
            for name, value in data[i].items():
                if isinstance(value, (list, Tensor)) or type(value).__name__ == "ndarray":
                    dims = getattr(value, "shape", (len(value) if isinstance(value, list) else 0,))
                    found[name] = max(found.get(name, 0), int(dims[0]) if len(dims) else 0)
    of = multiple or 1
    return {name: -(-length // of) * of for name, length in found.items() if length}


def shortest(samples: list[Any]) -> list[Any]:
    """The shorter half of some texts."""
    if not isinstance(samples[0], Mapping) or MAIN not in samples[0]:
        return samples
    return sorted(samples, key=lambda sample: len(sample[MAIN]))[: -(-len(samples) // 2)]


def padded(batch: Mapping[str, Any], lengths: Mapping[str, int], token: int) -> dict[str, Any]:
    """The batch with all texts as long as `lengths` has them. token: what is added to `input_ids`."""
    found = dict(batch)
    if MAIN not in found or MAIN not in lengths:
        return found
    now = found[MAIN].shape[1]
    for name, value in found.items():
        if not isinstance(value, Tensor) or value.dim() < 2:
            continue
        beside = "labels" if name.startswith("decoder_") else MAIN  # a collator made it, as long as these
        wanted = lengths.get(name) or (lengths.get(beside, 0) if value.shape[1] == batch[beside].shape[1] else 0)
        missing = wanted - value.shape[1]
        if not wanted or not missing:
            continue
        if missing < 0:
            raise UsageError(
                f"{name} of a batch has {value.shape[1]} positions, and the model was compiled for {wanted}; pass the "
                f"largest length, pad_to={value.shape[1]}"
            )
        if name == MAIN and MASK not in found:
            raise UsageError(
                f"texts of a batch have {now} positions, and the model was compiled for {wanted}; give it an "
                f"attention_mask, so that they can be padded, or pad them to one length"
            )
        fill = IGNORED if "label" in name else token if name.endswith(MAIN) else 0
        rest = torch.full((value.shape[0], missing, *value.shape[2:]), fill, dtype=value.dtype, device=value.device)
        found[name] = torch.cat([value, rest], 1)
    return found
