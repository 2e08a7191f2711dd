"""The heads of a program, for methods in which every stage has a loss of its own, each with its cost."""

from __future__ import annotations

from collections.abc import Sequence

from lpcompile.passes.auxnet.derive import AuxNet
from lpcompile.passes.auxnet.head import derive_head
from lpcompile.passes.auxnet.layers import take_weights
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.split.split import Place, Stage
from lpcompile.planning.auxiliary.auxnets import CostedNet, estimated


def make_heads(
    captured: Captured,
    stages: Sequence[Stage],
    places: Sequence[Place],
    budgets: Sequence[float],
    init: str = "fresh",
) -> list[CostedNet]:
    """One for each stage but the last; `places` are the boundaries, `budgets` shares of the stages' FLOPs.

    init="copy" gives them the weights of the layers that they were derived from, for a model that was trained. A
    consistent start means λ = X, and there is no λ here: heads are fresh then.
    """
    init = "copy" if init == "copy" else "fresh"
    made = []
    for k, (place, budget) in enumerate(zip(places, budgets, strict=True)):
        head: AuxNet = derive_head(captured, place, stages[k], budget=budget, init=init, seed=k)
        if init == "copy":
            take_weights(head, captured._lp.model, head.record.split)
        made.append(estimated(head, budget))
    return made
