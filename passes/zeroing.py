"""Which parameters must start at zero for a residual branch to start at zero.

The last norm's scale, or the last layer's weight where no norm follows: zero in, and the block is its shortcut. Walks
back from the sum over whatever maps zero to zero.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from lpcompile.errors import UsageError
from lpcompile.passes.residual import Residual

# Calls whose result is zero where their first argument is zero.
THROUGH = set(
    "getitem reshape view permute transpose swapaxes movedim moveaxis flatten unflatten contiguous squeeze unsqueeze "
    "expand expand_as repeat roll flip chunk split unbind narrow select clone to float half type type_as detach mT "
    "dropout dropout1d dropout2d dropout3d stochastic_depth drop_path relu relu_ relu6 gelu silu tanh hardswish "
    "leaky_relu elu mish mean sum neg div truediv floordiv avg_pool2d adaptive_avg_pool2d max_pool2d identity T "
    "window_reverse pad interpolate pixel_shuffle".split()
)
PRODUCTS = {"mul", "mul_", "imul", "__mul__", "matmul", "bmm", "einsum", "__matmul__"}
SUMS = {"add", "add_", "iadd", "sub", "sub_", "isub", "cat", "stack", "concat"}
AFFINE = {"linear": (1, 2), "conv1d": (1, 2), "conv2d": (1, 2), "conv3d": (1, 2), "layer_norm": (2, 3),
          "group_norm": (2, 3), "batch_norm": (3, 4), "rms_norm": (2,)}  # fmt: skip
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def zeroing(block: Residual, modules: nn.Module) -> tuple[str, ...] | None:
    """Names of the parameters whose zeros make the branch zero, or None where no such parameters are found."""
    if block.branch is block.node:  # a transformer layer of torch.nn
        return _block_layer(str(block.node.target), modules.get_submodule(str(block.node.target)))
    found = _zero(block.branch, modules)
    return None if found is None else tuple(sorted(found))


def _block_layer(target: str, layer: nn.Module) -> tuple[str, ...]:
    attention = [n for n in ("self_attn", "multihead_attn") if hasattr(layer, n)]
    outs = [f"{n}.out_proj" for n in attention] + ["linear2"]
    return tuple(f"{target}.{out}.{name}" for out in outs for name, _ in layer.get_submodule(out).named_parameters())


def _zero(node: fx.Node, modules: nn.Module) -> set[str] | None:
    if node.op == "call_module":
        return _zero_module(node, modules)
    if node.op == "get_attr":
        return {str(node.target)} if _is_parameter(node, modules) else None
    if node.op not in ("call_function", "call_method"):
        return None
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    inputs = _tensors(node)
    if name in AFFINE:
        given = [node.args[i] for i in AFFINE[name] if i < len(node.args)]
        given += [node.kwargs.get("weight"), node.kwargs.get("bias")]
        states = [a for a in given if isinstance(a, fx.Node)]
        if states and all(_is_parameter(a, modules) for a in states):
            return {str(a.target) for a in states}
        return None
    if name in SUMS:
        return _all([_zero(n, modules) for n in inputs])
    if name in PRODUCTS:
        states = [n for n in inputs if _is_parameter(n, modules)]
        return next((f for n in [*states, *inputs] if (f := _zero(n, modules)) is not None), None)
    if name in THROUGH and inputs:
        return _zero(inputs[0], modules)
    return None


def _zero_module(node: fx.Node, modules: nn.Module) -> set[str] | None:
    layer = modules.get_submodule(str(node.target))
    own = {f"{node.target}.{name}" for name, _ in layer.named_parameters(recurse=False)}
    if isinstance(layer, nn.MultiheadAttention):
        return {f"{node.target}.out_proj.{name}" for name, _ in layer.out_proj.named_parameters()}
    if own and (isinstance(layer, (nn.Linear, _ConvNd, *NORMS)) or _gives_zero(layer, node, weights=False)):
        return own if not _activated(layer) or _gives_zero(layer, node, weights=False) else None
    inputs = _tensors(node)
    if inputs and _gives_zero(layer, node, weights=True):
        return _zero(inputs[0], modules)
    return None


def _activated(layer: nn.Module) -> bool:
    """Subclasses of torch's layers may do more than these: timm's BatchNormAct2d applies an activation."""
    return not type(layer).__module__.startswith("torch.nn.")


def _gives_zero(layer: nn.Module, node: fx.Node, weights: bool) -> bool:
    """Whether the layer's result is zero for any input when its own parameters are zero; with `weights`, whether it is
    zero for a zero input with the weights it has. Tried on a copy."""
    inputs = _tensors(node)
    if len(inputs) != 1 or len(node.args) != 1 or node.kwargs or inputs[0].meta.get("spec") is None:
        return False
    spec = inputs[0].meta["spec"]
    if not spec.is_float:
        return False
    try:
        trial = copy.deepcopy(layer)
        if any(p.device.type == "meta" for p in (*trial.parameters(), *trial.buffers())):
            trial = trial.to_empty(device="cpu")
            for tensor in (*trial.parameters(), *trial.buffers()):
                tensor.data.fill_(1)
        trial = trial.cpu().eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            if not weights:
                for parameter in trial.parameters(recurse=False):
                    parameter.zero_()
            x = torch.zeros(spec.shape, dtype=spec.dtype)
            out = trial(x if weights else x.normal_())
        return isinstance(out, torch.Tensor) and not bool(out.any())
    except Exception:
        return False


def _is_parameter(node: fx.Node, modules: nn.Module) -> bool:
    if node.op != "get_attr":
        return False
    owner: Any = modules
    for part in str(node.target).split("."):
        owner = getattr(owner, part, None)
    return isinstance(owner, nn.Parameter)


def _tensors(node: fx.Node) -> list[fx.Node]:
    """The tensors a call works on, without sizes; those in a list (torch.cat) too."""
    flat: list[fx.Node] = []
    fx.node.map_arg((node.args, node.kwargs), lambda n: flat.append(n))
    return [n for n in flat if "symbol" not in n.meta]


def _all(found: list[set[str] | None]) -> set[str] | None:
    return None if not found or any(f is None for f in found) else set().union(*(f for f in found if f is not None))


def set_to_zero(model: nn.Module, names: Sequence[str]) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name in names:
            parameters[name].zero_()


def refuse_trained(model: nn.Module) -> None:
    """A consistent start changes initial weights: never those of a model that has learnt something."""
    why = _trained(model)
    if why:
        raise UsageError(
            f"init='consistent' sets residual branches of the model to zero, and this model was trained: {why}. "
            f"Use aux_init='copy' for it, or start from a fresh model"
        )


def _trained(model: nn.Module) -> str | None:
    for name, module in model.named_modules():
        count = getattr(module, "num_batches_tracked", None)
        if isinstance(count, torch.Tensor) and count.device.type != "meta" and int(count) > 0:
            return f"{name} has seen {int(count)} batches"
        weight = getattr(module, "weight", None)
        if isinstance(module, NORMS) and isinstance(weight, nn.Parameter) and weight.device.type != "meta":
            low, high = weight.detach().aminmax()
            if float(low) != float(high):
                return f"the scale of {name} is not constant"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            return f"{name} has a gradient"
    return None
