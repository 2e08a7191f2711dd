"""Random branches with a certain outcome: `torch.rand([]) < 0.0` is never true.

Many models write layer drop as such a branch. With a rate of zero it is decided, so that the encoder can be traced
instead of kept whole.
"""

from __future__ import annotations

from typing import Any

import torch

_RAND = {"rand", "rand_like"}  # values in [0, 1)
_BELOW = {"lt", "__lt__", "le", "__le__"}
_ABOVE = {"gt", "__gt__", "ge", "__ge__"}


class UnitRange:
    """The tensors known to lie in [0, 1), and the comparisons with a number that this decides."""

    def __init__(self) -> None:
        self._unit: dict[int, torch.Tensor] = {}
        self._decided: dict[int, tuple[torch.Tensor, bool]] = {}

    def note(self, name: str, args: Any, kwargs: Any, out: Any) -> None:
        if not isinstance(out, torch.Tensor):
            return
        in_place = name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
        if args and in_place and id(args[0]) in self._unit:
            del self._unit[id(args[0])]  # changed in place: its range is unknown now
        if name in _RAND:
            self._unit[id(out)] = out
        elif name in _BELOW | _ABOVE and len(args) == 2 and id(args[0]) in self._unit:
            outcome = _decide(name, args[1])
            if outcome is not None:
                self._decided[id(out)] = (out, outcome)

    def same(self, source: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        """A copy has the range of its source."""
        if id(source) in self._unit:
            self._unit[id(copied)] = copied
        return copied

    def proven(self, tensor: torch.Tensor) -> bool | None:
        found = self._decided.get(id(tensor))
        return None if found is None else found[1]


def _decide(name: str, bound: Any) -> bool | None:
    """The outcome of `u name bound` for every u in [0, 1), or None if it depends on u."""
    if isinstance(bound, torch.Tensor) or not isinstance(bound, (int, float)):
        return None
    if name in _BELOW:
        never = bound <= 0 if "lt" in name else bound < 0
        return True if bound >= 1 else False if never else None
    always = bound < 0 if "gt" in name else bound <= 0
    return True if always else False if bound >= 1 else None
