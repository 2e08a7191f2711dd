"""State of optimizers, schedulers and trainers as JSON and named tensors, and back, without pickle.

>>> tensors, text = flat({"lr": 0.1, "betas": (0.9, 0.99), "state": {0: {"exp_avg": t}}}, "optimizer")
>>> tensors
{'optimizer/state/0/exp_avg': t}
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lpcompile.errors import UsageError

KINDS: dict[str, Callable[[list[Any]], Any]] = {"tuple": tuple, "set": set, "deque": deque}


def flat(value: Any, at: str) -> tuple[dict[str, Tensor], Any]:
    """The tensors in `value` by their path below `at`, and the rest as JSON data that names them."""
    tensors: dict[str, Tensor] = {}
    return tensors, _down(value, at, tensors)


def _down(value: Any, at: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[at] = value.detach()
        return {"$": "tensor", "at": at}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return {"$": "dtype", "name": str(value).removeprefix("torch.")}
    if isinstance(value, list):
        return [_down(v, f"{at}/{i}", tensors) for i, v in enumerate(value)]
    for name, kind in (("tuple", tuple), ("set", set), ("deque", deque)):
        if isinstance(value, kind):
            items = sorted(value) if kind is set else value
            return {"$": name, "items": [_down(v, f"{at}/{i}", tensors) for i, v in enumerate(items)]}
    if isinstance(value, dict):
        pairs = [[_key(k, at), _down(v, f"{at}/{k}", tensors)] for k, v in value.items()]
        return {"$": "counter" if isinstance(value, Counter) else "dict", "items": pairs}
    raise UsageError(
        f"{at} is a {type(value).__name__}, which a checkpoint cannot hold; only tensors, numbers, texts and "
        f"containers of them can be saved and read again safely"
    )


def _key(key: Any, at: str) -> Any:
    if isinstance(key, (int, str)):
        return key
    raise UsageError(f"{at} has the key {key!r}, which a checkpoint cannot hold; use texts or whole numbers")


def names(data: Any) -> list[str]:
    """The names of tensors in the JSON data of `flat`."""
    if isinstance(data, list):
        return [name for v in data for name in names(v)]
    if isinstance(data, dict):
        return [data["at"]] if data.get("$") == "tensor" else names(data.get("items", []))
    return []


def nested(data: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `flat`."""
    if isinstance(data, list):
        return [nested(v, tensors) for v in data]
    if not isinstance(data, dict):
        return data
    kind = data.get("$")
    if kind == "tensor":
        return tensors[data["at"]]
    if kind == "dtype":
        found = getattr(torch, str(data["name"]), None)
        if isinstance(found, torch.dtype):
            return found
    if kind in KINDS:
        return KINDS[kind]([nested(v, tensors) for v in data["items"]])
    if kind in ("dict", "counter"):
        made = {k: nested(v, tensors) for k, v in data["items"]}
        return Counter(made) if kind == "counter" else made
    raise UsageError(f"a checkpoint holds data of kind {kind!r}, which is not known; was it made by a newer version?")
