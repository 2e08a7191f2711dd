"""The user's own AuxNets: `auxnet=factory(in_spec, out_spec, stage)`, a module for each boundary, or a model to cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx, nn

from lpcompile.core.stage_io import TensorSpec
from lpcompile.errors import UsageError
from lpcompile.passes.auxnet.adapter import noted
from lpcompile.passes.auxnet.check import Mismatch, checked_flops
from lpcompile.passes.auxnet.derive import AuxNet, AuxRecord, assemble
from lpcompile.passes.auxnet.smaller import SmallerModel, pieces
from lpcompile.passes.split.split import Stage, stage_io

Given = Callable[..., nn.Module] | Sequence[nn.Module | None] | Mapping[int, nn.Module]


def given_module(given: Given, k: int, stages: Sequence[Stage]) -> nn.Module | None:
    """The user's network for AuxNet_k, which predicts boundary k + 1; None to derive one."""
    count = len(stages) - 1
    found: Any
    if isinstance(given, Mapping):
        if unknown := set(given) - set(range(1, count + 1)):
            raise UsageError(f"auxnet names boundaries {sorted(unknown)}; there are 1 to {count}")
        found = given.get(k + 1)
    elif isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != count:
            raise UsageError(f"auxnet has {len(given)} modules; K = {len(stages)} stages have {count} boundaries")
        found = given[k]
    elif callable(given):
        found = _call(given, k, stages[k])
    else:
        raise UsageError(f"auxnet is a {type(given).__name__}; give a factory, a module, a list or a dict of modules")
    if found is not None and not isinstance(found, nn.Module):
        raise UsageError(f"the auxnet for boundary {k + 1} is a {type(found).__name__}, not a torch.nn.Module")
    return found


def auxnets_of_model(given: SmallerModel, stages: Sequence[Stage]) -> list[AuxNet]:
    """AuxNets from one module: of a single boundary it may be the AuxNet itself, else it is a model to cut."""
    if len(stages) == 2:
        try:
            return [wrap(given.model, 0, stages[0])]
        except UsageError:
            pass
    return pieces(given, stages)


def _call(factory: Callable[..., Any], k: int, stage: Stage) -> Any:
    in_specs, out_specs = _specs(stage)
    try:
        return factory(_bare(in_specs), _bare(out_specs), stage)
    except Exception as error:
        raise UsageError(
            f"the auxnet factory failed for boundary {k + 1} ({type(error).__name__}: {error}); "
            f"it is called as factory(in_spec, out_spec, stage)"
        ) from error


def _specs(stage: Stage) -> tuple[list[TensorSpec], tuple[TensorSpec, ...]]:
    """Inputs and outputs of a user's network: it reads the boundary before the stage, or the model's inputs."""
    io = stage_io(stage, True)
    placeholders = [n.meta["spec"] for n in stage._lp_graphs[True].nodes if n.op == "placeholder"]
    return list(io.lams) or placeholders, io.boundary


def _bare(specs: Sequence[TensorSpec]) -> Any:
    return specs[0] if len(specs) == 1 else tuple(specs)


def wrap(module: nn.Module, k: int, stage: Stage) -> AuxNet:
    """The user's module with the calling convention of an AuxNet, checked for shape and dtype."""
    io = stage_io(stage, True)
    graph = fx.Graph()
    nodes = []
    for node in stage._lp_graphs[True].nodes:
        if node.op == "placeholder":
            nodes.append(graph.placeholder(str(node.target)))
            nodes[-1].meta = dict(node.meta)
    taken = nodes[: len(io.lams)] or nodes
    call = noted(graph.create_node("call_module", "net", tuple(taken)))
    graph.output(call)
    aux = assemble(stage, graph, {"net": module})
    aux._lp_set_record(AuxRecord("user", "user"))
    try:
        flops = checked_flops(aux, io.boundary)
    except Mismatch as mismatch:
        in_specs, out_specs = _specs(stage)
        raise UsageError(
            f"the auxnet for boundary {k + 1} does not fit: {mismatch}. It must map "
            f"{', '.join(map(str, in_specs))} to {', '.join(map(str, out_specs))}"
        ) from mismatch
    whole = sum(float(n.meta.get("flops", 0)) for n in stage._lp_graphs[True].nodes if n.op != "placeholder") or 1.0
    aux._lp_set_record(AuxRecord("user", "user", forward_share=flops / whole, backward_share=flops / whole))
    return aux
