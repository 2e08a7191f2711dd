"""What each instruction of a schedule costs on a device, from the costs in a plan.

A plan's costs are for one mini-batch. A micro-batch takes its share of them, but for what a unit costs at no samples
at all (`overhead_us` of the device), which it takes in full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lpcompile.core.cost import UnitCost
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Instruction
from lpcompile.passes.profile.split_backward_cost import FIRST, OTHERS
from lpcompile.simulate.device_spec import DeviceSpec

# How often an instruction moves its boundary's bytes through memory: reads and writes of the handler's tensors.
BOUNDARY_PASSES = {"penalize": 8, "correct": 3, "recall": 3, "store": 8, "kappa": 3, "multiply": 8}
STEP_PASSES = 8  # over a rank's parameters: the gradient's norm, clipping, SGD with momentum
STASH_PASSES = 2
FREE = ("recv", "wait", "send", "offer", "draw", "average", "tied", "norm")  # played as what they are, not as work


@dataclass(frozen=True)
class InstructionCosts:
    """ms and bytes for one micro-batch; by rank, or by boundary where that is what an instruction names."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...]  # of a backward's input and weight part, over the undivided one
    aux_forward: dict[int, float]
    aux_backward: dict[int, float]
    sizes: dict[int, float]  # bytes that cross a boundary
    gradients: dict[int, float]  # of those that have gradients
    parameters: tuple[float, ...]  # bytes by rank, with its AuxNets
    ms_per_byte: float
    overhead: float
    serial: float  # the whole mini-batch on one device, its step included

    def message(self, kind: str, boundary: int) -> float:
        return (self.gradients if kind in ("p", "kappa") else self.sizes).get(boundary, 0.0)

    def of(self, rank: int, item: Instruction) -> float | None:
        """ms of an instruction; None where nothing is known about it."""
        k, op = item.boundary, item.op
        if op in FREE:
            return 0.0
        if op in ("forward", "replay"):
            return self.forward[rank]
        if op == "backward":
            return self.backward[rank]
        if op in ("backward_input", "backward_weight"):
            return self.backward[rank] * self.parts[rank][op == "backward_weight"]
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
            return STASH_PASSES * self.parameters[rank] * self.ms_per_byte
        if op == "step":
            return self.overhead + STEP_PASSES * self.parameters[rank] * self.ms_per_byte
        return None


def costs_of(plan: Plan, device: DeviceSpec, micro: int, share: float = 1.0) -> InstructionCosts:
    """The costs of a plan on a device, for steps of `share` of the plan's batch in `micro` micro-batches."""
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
        tuple(s.parts or (OTHERS if s.index else FIRST) for s in plan.stages),
        aux_forward,
        aux_backward,
        sizes,
        gradients,
        tuple(parameters),
        ms_per_byte,
        overhead,
        whole + loss * share + step,
    )


def loss_of(plan: Plan, device: DeviceSpec) -> float:
    """What the undivided step has beside the model's units."""
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
    """Forward and backward ms of these units, one after another; their costs were measured with a part of the batch."""
    overhead, forward, backward = device.overhead_us / 1e3, 0.0, 0.0
    counted = device.flops is not None and (device.scale is None or cost != "measured")
    for u in units:
        if counted:
            assert device.flops is not None
            per_flop, per_byte = 1e3 / device.flops, 1 / (device.memory_gb_per_s * 1e6)
            # What is saved is written and read again; its gradient is, too.
            moved = 2 * u.saved_bytes * share + u.parameter_bytes
            forward += overhead + max(u.forward_flops * share * per_flop, moved * per_byte)
            backward += 2 * overhead + max(u.backward_flops * share * per_flop, 2 * moved * per_byte)
        else:
            speed = device.scale or 1.0
            forward += _part(u.forward / speed, overhead, share, part)
            backward += _part(u.backward / speed, 2 * overhead, share, part)
    return forward, backward


def _part(whole: float, fixed: float, share: float, part: float) -> float:
    """The time of a share of the batch, of which something does not depend on the number of samples, from that of the
    part that was measured."""
    once = whole * part
    fixed = min(fixed, once / 2)
    return fixed + (once - fixed) * share / part


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
