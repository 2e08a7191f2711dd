"""The AuxNets of a program on real tensors: does each give what its boundary carries, and can it learn?"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lpcompile.compile import parallelize
from lpcompile.program import Program
from lpcompile.zoo.check import seeded, short
from lpcompile.zoo.entry import Inputs, ZooRow

SEED = 7


def aux_check(model: nn.Module, program: Program, inputs: Inputs) -> ZooRow:
    """`aux`: "right", or what is wrong with the AuxNets at K stages and at two; with their kinds and the largest share.
    Never raises."""
    args, kwargs = inputs
    row: ZooRow = {}
    try:
        two = parallelize(model, 2, example_inputs=args, example_kwargs=kwargs, cost="flops", gate=False)
        wrong = [f"K = {p.plan.K}: {w}" for p in (program, two) for w in problems(p, inputs)]
        aux = [net.record for p in (program, two) for net in p.auxnets]
        row = {"aux_kinds": [a.kind for a in aux], "aux_share": max((a.forward_share for a in aux), default=0.0)}
    except Exception as error:
        wrong = [short(error)]
    return row | {"aux": "; ".join(wrong[:3]) if wrong else "right"}


def problems(program: Program, inputs: Inputs) -> list[str]:
    found = []
    args, kwargs = inputs
    for k, (stage, lams, xs) in enumerate(chain(program, program.auxnets, args, kwargs)):
        seen, wanted = ([(tuple(t.shape), t.dtype) for t in tensors] for tensors in (lams, xs))
        if seen != wanted:
            found.append(f"AuxNet {k} gives {seen}, the stage {wanted}")
        floats = [t for t in lams if t.is_floating_point()]
        learns = any(t.requires_grad for t in floats) or not any(p.requires_grad for p in stage.parameters())
        if floats and not learns:
            found.append(f"AuxNet {k} cannot learn")
    return found


def chain(program: Program, auxnets: Any, args: Any, kwargs: Any) -> list[tuple[nn.Module, list[Any], list[Any]]]:
    """For each boundary the stage, λ through the AuxNets, and X from the stage, in training mode."""
    program.train()
    tensors = program.captured._lp.signature.flat(args, kwargs)
    found: list[tuple[nn.Module, list[Any], list[Any]]] = []
    lam: list[torch.Tensor] = []
    for stage, aux in zip(program.stages, auxnets, strict=False):
        io, own = stage._lp_io[True], aux._lp_io[True]
        seeded(SEED)
        with torch.no_grad():
            xs = _list(stage(*lam, *(tensors[i] for i in io.inputs)))[: len(io.boundary)]
        lams = _list(aux(*(lam if own.lams else ()), *(tensors[i] for i in own.inputs)))
        found.append((stage, lams, xs))
        lam = [t.detach() for t in lams]
    return found


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]
