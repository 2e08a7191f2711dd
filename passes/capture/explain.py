"""Why a model cannot be captured, in plain words: the source line, the reason, what to try."""

from __future__ import annotations

import difflib
import inspect
import linecache
import traceback
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from lpcompile.errors import CaptureError, UsageError
from lpcompile.passes.capture.record.refusal import SIZED_BY_DATA, ModuleTrail, Unrecordable
from lpcompile.passes.capture.record.values import is_library
from lpcompile.passes.graph.module import forward_of

DRAWN = "draw from torch's generator (torch.rand, torch.bernoulli) and use the result as a tensor"


def check_model(model: Any) -> None:
    """Refuse wrappers and objects that are not modules before any work is done."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(model).__name__}; pass the model itself")
    wrapped = {"OptimizedModule": "_orig_mod", "DistributedDataParallel": "module", "DataParallel": "module",
               "FullyShardedDataParallel": "module"}.get(type(model).__name__)  # fmt: skip
    if wrapped is not None and hasattr(model, wrapped):
        raise UsageError(
            f"the model is wrapped in {type(model).__name__}; pass model.{wrapped} (wrap or compile the stages instead)"
        )
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise CaptureError(f"{name} is lazy and has no shape yet; run the model once on a batch, then compile it")
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("a TorchScript module has no Python forward to record; pass the nn.Module it was made from")


def has_meta(model: nn.Module) -> bool:
    return any(t.device.type == "meta" for t in [*model.parameters(), *model.buffers()])


def blame(error: Exception, trail: ModuleTrail) -> Unrecordable:
    """An exception inside forward as a refusal: the module, the reason and the source line."""
    if isinstance(error, Unrecordable):
        return error
    path, source = trail.failed_at or ("", "")
    return Unrecordable(path, _reason(error), _line_of(error) or source)


def _reason(error: Exception) -> str:
    name, text = type(error).__name__, str(error).strip().split("\n")[0][:200]
    if "DataDependent" in name or "data-dependent" in str(error).lower():
        return "what it does next depends on the values in a tensor (an if, a loop or a size)"
    if "DynamicOutputShape" in name:
        return SIZED_BY_DATA
    return f"{name}: {text}"


def _line_of(error: BaseException) -> str:
    """The innermost line of the user's own code in a traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not is_library(f.filename)]
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def at(source: str) -> str:
    return f" ({source})" if source else ""


def capture_error(model: nn.Module, error: Unrecordable, tensors: list[torch.Tensor], rebuild: Any) -> CaptureError:
    """The final error: what failed, where, and the remedies. A model that fails by itself gets its own error."""
    own = _fails_by_itself(model, tensors, rebuild)
    if own is not None:
        return CaptureError(f"the model itself fails on the example inputs, before lpcompile does anything: {own}")
    args, kwargs = rebuild(tensors)
    if not error.path and _takes_boxes((args, kwargs)):
        return CaptureError(_boxes(model, error))
    where = f"in module {error.path!r}" if error.path else f"in the forward of {type(model).__name__} itself"
    lines = [f"cannot capture {type(model).__name__}: {where}, {error.reason}"]
    source = error.source or _forward_of(model.get_submodule(error.path))
    if source:
        lines.append(f"  at {source}{_code(source)}")
    lines.append("what to try:")
    if error.remedy:
        lines.append(f"  {error.remedy}")
    if error.path:
        parent = error.path.rpartition(".")[0]
        lines.append(
            f"  leaf=[{error.path!r}] keeps that module whole" + (f" (or its parent {parent!r})" if parent else "")
        )
    if not error.remedy:
        lines.append("  concrete_args={'name': value} fixes an argument of forward that the branch depends on")
        lines.append("  front_end='specialise' freezes the branch at what it is for these example inputs")
    if not error.path:
        lines.append("  or move that part of forward into a submodule, which can then stay whole")
    return CaptureError("\n".join(lines))


def _takes_boxes(given: Any) -> bool:
    """Whether targets are boxes, as detection models of torchvision take them."""
    if isinstance(given, (list, tuple)):
        return any(map(_takes_boxes, given))
    return isinstance(given, dict) and ("boxes" in given or any(map(_takes_boxes, given.values())))


def _boxes(model: nn.Module, error: Unrecordable) -> str:
    """One line: no step after the matching of boxes is the same in two calls."""
    sizes = {name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()}
    largest = max(sizes, key=sizes.__getitem__, default="")
    name = type(model).__name__
    return (
        f"cannot capture {name}: it matches boxes, whose number differs from image to image{at(error.source)}; train "
        f"{name} undivided, or call a program of its {largest} in it: lpcompile.parallelize(model.{largest}, ...)"
    )


def _forward_of(module: nn.Module) -> str:
    """The first line of a module's forward, for refusals without a line of their own (a consumed generator)."""
    forward = forward_of(module)
    code = None if forward is None else getattr(inspect.unwrap(forward), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}" if code is not None else ""


def _fails_by_itself(model: nn.Module, tensors: list[torch.Tensor], rebuild: Any) -> str | None:
    args, kwargs = rebuild(tensors)
    try:
        with torch.enable_grad():  # a forward may take gradients itself
            model(*args, **kwargs)
    except Exception as error:
        if has_meta(model) and (isinstance(error, NotImplementedError) or "meta" in str(error)):
            return None  # it may run with weights
        return f"{type(error).__name__}: {error}{at(_line_of(error))}"
    return None


def _code(source: str) -> str:
    file, _, rest = source.rpartition(":")
    line = linecache.getline(file, int(rest.split(" ")[0])).strip() if rest else ""
    return f": {line}" if line else ""


def closest(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, list(names), n=3)
    return f"; closest: {', '.join(found)}" if found else ""
