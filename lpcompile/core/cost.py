"""What a unit costs: the artefact that `profile` makes and `partition` reads."""

from __future__ import annotations

from dataclasses import dataclass

STATE_COPIES = 3.0  # bytes of training state over bytes of parameters: weights, gradients, momentum


@dataclass(frozen=True)
class UnitCost:
    """One unit: the nodes between two neighbouring cuts. Times in ms, sizes in bytes, for one mini-batch.

    The last unit's `output_bytes` is the model's output; every other unit's is what crosses the cut after it.
    """

    name: str
    forward: float
    backward: float
    forward_spread: float = 0.0
    backward_spread: float = 0.0
    forward_flops: int = 0
    backward_flops: int = 0
    parameters: int = 0
    parameter_bytes: int = 0
    saved_bytes: int = 0
    output_bytes: int = 0


@dataclass(frozen=True)
class Profile:
    """The costs of all units of a captured model, in program order; a cut is legal after every unit but the last."""

    units: tuple[UnitCost, ...]
    cost: str  # "measured" or "flops"
    device: str
    whole_forward: float | None = None  # measured ms of the undivided model
    whole_backward: float | None = None
    raw_ratio: float | None = None  # sum of the measured units before scaling, over the undivided step
    loss: float = 0.0  # ms of loss forward + backward, charged to the last rank
    part: float = 1.0  # share of the mini-batch that was measured; costs are scaled to the whole
    samples: int | None = None  # number of samples of that part
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> float:
        """ms of the measured steps; 0 if nothing was measured."""
        return ((self.whole_forward or 0.0) + (self.whole_backward or 0.0)) * self.part

    @property
    def total(self) -> float:
        return sum(u.forward + u.backward for u in self.units)
