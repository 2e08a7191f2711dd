"""The cost of each instruction of a schedule on a device, from the costs in a plan.

A plan's costs are for one mini-batch. A micro-batch has its share of them, and the full fixed cost of each unit
(the device's `overhead_us`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lpcompile.core.cost import UnitCost
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Instruction
from lpcompile.passes.profile.split_backward_cost import DEFAULT_SHARES, FIRST_STAGE_SHARES
from lpcompile.simulate.device_spec import DeviceSpec

# Passes over the boundary's bytes in memory: reads and writes of the instruction's tensors.
BOUNDARY_PASSES = {"penalize": 8, "correct": 3, "recall": 3, "store": 8, "kappa": 3, "multiply": 8}
STEP_PASSES = 8  # over a rank's parameters: the gradient's norm, clipping, SGD with momentum
STASH_PASSES = 2
PREDICT_PASSES = 5  # a copy of the weights before the update, and their extrapolation
COMMUNICATION = ("recv", "wait", "send", "offer", "draw", "average", "tied", "norm")  # costs come from the network


@dataclass(frozen=True)
class InstructionCosts:
    """ms and bytes of one micro-batch, by stage or by boundary."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...]  # by stage: input and weight part of a backward, relative to the whole
    aux_forward: dict[int, float]
    aux_backward: dict[int, float]
    sizes: dict[int, float]  # bytes that cross a boundary
    gradients: dict[int, float]  # the part of these that has gradients
    parameters: tuple[float, ...]  # bytes by stage, AuxNets included
    micro: int
    ms_per_byte: float
    overhead: float
    serial: float  # the whole mini-batch on one device, optimizer step included

    def message(self, kind: str, boundary: int) -> float:
        return (self.gradients if kind in ("p", "kappa") else self.sizes).get(boundary, 0.0)

    def weight(self, stages: Sequence[int]) -> float:
        """Bytes of all parameters of a rank."""
        return sum(self.parameters[s] for s in stages)

    def of(self, stages: Sequence[int], item: Instruction) -> float | None:
        """ms of an instruction on the rank of these stages; None if its cost is unknown."""
        k, op, s = item.boundary, item.op, item.stage if item.stage >= 0 else stages[0]
        if op in COMMUNICATION:
            return 0.0
        if op in ("forward", "replay"):
            return self.forward[s]
        if op == "backward":
            return self.backward[s]
        if op in ("backward_input", "backward_weight"):
            return self.backward[s] * self.parts[s][op == "backward_weight"]
        if op == "aux_forward":
            return self.aux_forward.get(k, 0.0)
        if op == "distil":
            again = 0.0 if any(ref.kind == "aux" for ref in item.reads) else self.aux_forward.get(k, 0.0)
            return again + self.aux_backward.get(k, 0.0)
        if op == "head":
            return self.aux_forward.get(k, 0.0) + self.aux_backward.get(k, 0.0)
        if op in BOUNDARY_PASSES:
            return self.overhead + BOUNDARY_PASSES[op] * self.sizes.get(k, 0.0) * self.ms_per_byte
        if op == "stash":
            return STASH_PASSES * self.parameters[s] * self.ms_per_byte
        if op == "predict":  # once a step, for all micro-batches that the update will overtake
            return PREDICT_PASSES * self.parameters[s] * self.ms_per_byte if item.slot == self.micro - 1 else 0.0
        if op == "step":
            return self.overhead + STEP_PASSES * self.weight(stages) * self.ms_per_byte
        return None


def costs_of(plan: Plan, device: DeviceSpec, micro: int, share: float = 1.0) -> InstructionCosts:
    """Costs of a plan on a device, with `share` of the plan's batch per step in `micro` micro-batches."""
    part = share / micro
    forward, backward = stage_times(plan, device, part)
    whole = sum(unit_times(plan.units, plan.cost, device, share, plan.part))
    loss = loss_of(plan, device)
    forward[-1] += loss * part / 2
    backward[-1] += loss * part / 2
    aux_forward, aux_backward, sizes, gradients = {}, {}, {}, {}
    parameters = [float(s.parameter_bytes) for s in plan.stages]
    for b in plan.boundaries:
        below = plan.stages[b.index - 1]
        crossing = float(b.nbytes or plan.units[below.last].output_bytes)
        wanted = sum(s.nbytes for s in b.specs if s.requires_grad) or crossing
        sizes[b.index], gradients[b.index] = crossing * part, wanted * part
        if b.aux is not None:
            aux_forward[b.index] = forward[b.index - 1] * _ratio(b.aux.forward, below.forward)
            aux_backward[b.index] = backward[b.index - 1] * _ratio(b.aux.backward, below.backward)
            parameters[b.aux.rank] += b.aux.parameter_bytes
    ms_per_byte, overhead = 1 / (device.memory_gb_per_s * 1e6), device.overhead_us / 1e3
    step = overhead + STEP_PASSES * sum(s.parameter_bytes for s in plan.stages) * ms_per_byte
    return InstructionCosts(
        tuple(forward),
        tuple(backward),
        tuple(s.parts or (DEFAULT_SHARES if s.index else FIRST_STAGE_SHARES) for s in plan.stages),
        aux_forward,
        aux_backward,
        sizes,
        gradients,
        tuple(parameters),
        micro,
        ms_per_byte,
        overhead,
        whole + loss * share + step,
    )


def loss_of(plan: Plan, device: DeviceSpec) -> float:
    """ms of the undivided step that are not in the model's units: the loss."""
    if plan.cost != "measured" or device.scale is None:
        return 0.0
    return max(0.0, plan.serial - sum(u.forward + u.backward for u in plan.units)) / device.scale


def stage_times(plan: Plan, device: DeviceSpec, share: float) -> tuple[list[float], list[float]]:
    """Forward and backward ms of every stage for this share of the batch."""
    found = [unit_times(plan.units[s.first : s.last + 1], plan.cost, device, share, plan.part) for s in plan.stages]
    return [f for f, _ in found], [b for _, b in found]


def unit_times(
    units: Sequence[UnitCost], cost: str, device: DeviceSpec, share: float, part: float = 1.0
) -> tuple[float, float]:
    """Forward and backward ms of consecutive units for a share of the batch. part: the share that was measured."""
    overhead, forward, backward = device.overhead_us / 1e3, 0.0, 0.0
    counted = device.flops is not None and (device.scale is None or cost != "measured")
    for u in units:
        if counted:
            assert device.flops is not None
            per_flop, per_byte = 1e3 / device.flops, 1 / (device.memory_gb_per_s * 1e6)
            # Activations are written and read again; so are their gradients.
            moved = 2 * u.saved_bytes * share + u.parameter_bytes
            forward += overhead + max(u.forward_flops * share * per_flop, moved * per_byte)
            backward += 2 * overhead + max(u.backward_flops * share * per_flop, 2 * moved * per_byte)
        else:
            speed = device.scale or 1.0
            forward += _part(u.forward / speed, overhead, share, part)
            backward += _part(u.backward / speed, 2 * overhead, share, part)
    return forward, backward


def _part(whole: float, fixed: float, share: float, part: float) -> float:
    """The time for a share of the batch, from the time of the measured part; `fixed` does not depend on samples."""
    once = whole * part
    fixed = min(fixed, once / 2)
    return fixed + (once - fixed) * share / part


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
