"""Traces of ranks: events, the kind of work of an instruction, and the mini-batch that it works on."""

from __future__ import annotations

import re

Event = tuple[str, int, int, float, float]  # instruction, rank, step, begin, end in seconds, as the trainer traces it

KINDS = {
    "forward": ("forward", "replay"),
    "backward": ("backward", "backward_input", "backward_weight"),
    "auxiliary": (
        "aux_forward",
        "distil",
        "head",
        "penalize",
        "correct",
        "kappa",
        "multiply",
        "recall",
        "store",
        "stash",
        "predict",
    ),
    "wait": ("wait", "draw", "norm", "tied", "average"),  # for other ranks
    "message": ("send", "recv", "offer"),
    "step": ("step",),
    "data": ("data",),
}
SLOT = re.compile(r"\[([+-]\d+)\]")


def kind_of(name: str) -> str:
    """The kind of work of an instruction, by its text."""
    op = name.split(" ")[0]
    return next((kind for kind, ops in KINDS.items() if op in ops), "auxiliary")


def batch_of(event: Event, micro: int) -> int:
    """The mini-batch that an instruction works on, which may differ from the step's in a skewed method."""
    found = SLOT.search(event[0])
    return event[2] + (int(found[1]) // micro if found else 0)
