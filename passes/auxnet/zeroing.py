"""Which parameters must start at zero for a residual branch to be zero, so that the block is its shortcut.

Usually the last norm's scale and offset, or the last layer's weight and bias if no norm follows. The search walks back
from the sum through operations that map zero to zero.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from lpcompile.errors import UsageError
from lpcompile.passes.auxnet.layers import detached_copy
from lpcompile.passes.graph.module import submodule
from lpcompile.passes.graph.residual import Residual

# Calls that map zero to zero and have a gradient there. Not ReLU: a branch that starts at zero would stay at zero.
ZERO_PRESERVING = set(
    "getitem reshape view permute transpose swapaxes movedim moveaxis flatten unflatten contiguous squeeze unsqueeze "
    "expand expand_as repeat roll flip chunk split unbind narrow select clone to float half type type_as mT T "
    "dropout dropout1d dropout2d dropout3d stochastic_depth drop_path gelu silu tanh hardswish leaky_relu elu mish "
    "mean sum neg div truediv avg_pool2d adaptive_avg_pool2d max_pool2d identity window_reverse pad interpolate "
    "pixel_shuffle".split()
)
PRODUCTS = {"mul", "mul_", "imul", "__mul__", "matmul", "bmm", "einsum", "__matmul__"}
SUMS = {"add", "add_", "iadd", "sub", "sub_", "isub", "cat", "stack", "concat"}
AFFINE = {"linear": (1, 2), "conv1d": (1, 2), "conv2d": (1, 2), "conv3d": (1, 2), "layer_norm": (2, 3),
          "group_norm": (2, 3), "batch_norm": (3, 4), "rms_norm": (2,)}  # fmt: skip
NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def zeroing(block: Residual, modules: nn.Module) -> tuple[str, ...] | None:
    """Names of the parameters that make the branch zero when they are zero; None if there are none.

    If the branch is zero already, these are the parameters that make it so: two zeros in a row would never learn.
    """
    if block.branch is block.node:  # a transformer layer of torch.nn
        return _block_layer(str(block.node.target), submodule(modules, str(block.node.target)))
    found = _Walk(modules, zero_now=True).zero(block.branch)
    if found is None:
        found = _Walk(modules, zero_now=False).zero(block.branch)
    return None if found is None else tuple(sorted(found))


def _block_layer(target: str, layer: nn.Module) -> tuple[str, ...]:
    attention = [n for n in ("self_attn", "multihead_attn") if hasattr(layer, n)]
    outs = [f"{n}.out_proj" for n in attention] + ["linear2"]
    return tuple(f"{target}.{out}.{name}" for out in outs for name, _ in layer.get_submodule(out).named_parameters())


class _Walk:
    """Walks back from a node to the parameters that can make it zero; with `zero_now`, only those that are zero."""

    def __init__(self, modules: nn.Module, zero_now: bool) -> None:
        self.modules, self.zero_now = modules, zero_now

    def zero(self, node: fx.Node) -> set[str] | None:
        if node.op == "call_module":
            return self._module(node)
        if node.op == "get_attr":
            return self._use({str(node.target)}) if _is_parameter(node, self.modules) else None
        if node.op not in ("call_function", "call_method"):
            return None
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        inputs = _tensors(node)
        if name in AFFINE:
            given = [node.args[i] for i in AFFINE[name] if i < len(node.args)]
            given += [node.kwargs.get("weight"), node.kwargs.get("bias")]
            states = [a for a in given if isinstance(a, fx.Node)]
            known = bool(states) and all(_is_parameter(a, self.modules) for a in states)
            return self._use({str(a.target) for a in states}) if known else None
        if name in SUMS:
            numbers = [a for a in node.args if isinstance(a, (int, float)) and name not in ("cat", "stack", "concat")]
            return None if any(numbers) else _all([self.zero(n) for n in inputs])
        if name in PRODUCTS:
            states = [n for n in inputs if _is_parameter(n, self.modules)]
            return next((f for n in [*states, *inputs] if (f := self.zero(n)) is not None), None)
        if name == "pad" and (node.kwargs.get("value") or any(node.args[3:])):
            return None
        return self.zero(inputs[0]) if name in ZERO_PRESERVING and inputs else None

    def _use(self, names: set[str]) -> set[str] | None:
        values = [_parameter(self.modules, name) for name in names]
        if not self.zero_now:
            return names if all(v.requires_grad for v in values) else None  # a frozen zero would stay zero
        known = all(v.device.type != "meta" and not bool(v.detach().any()) for v in values)
        return names if known else None

    def _module(self, node: fx.Node) -> set[str] | None:
        layer = submodule(self.modules, str(node.target))
        if isinstance(layer, nn.MultiheadAttention):
            return self._use({f"{node.target}.out_proj.{name}" for name, _ in layer.out_proj.named_parameters()})
        own = {name for name, _ in layer.named_parameters(recurse=False)} - {"weight_v"}
        own |= {name for name, _ in layer.named_parameters() if name == "parametrizations.weight.original0"}
        silent = own and (_is_plain_layer(layer) or _gives_zero(layer, node, own))
        found = self._use({f"{node.target}.{name}" for name in own}) if silent else None
        inputs = _tensors(node)
        if found is None and inputs and (self.zero_now or not silent) and _gives_zero(layer, node, None):
            found = self.zero(inputs[0])
        return found


def _is_plain_layer(layer: nn.Module) -> bool:
    """Whether a layer is torch.nn's own: subclasses may do more (timm's BatchNormAct2d applies an activation), and a
    parametrized weight is not the parameter."""
    plain = type(layer).__module__.startswith("torch.nn.modules.") and not layer._forward_pre_hooks
    return plain and isinstance(layer, (nn.Linear, _ConvNd, *NORMS)) and not hasattr(layer, "parametrizations")


def _gives_zero(layer: nn.Module, node: fx.Node, names: Collection[str] | None) -> bool:
    """Whether the result is zero, with a gradient that is not: for any input if the parameters `names` are zero, or,
    without names, for a zero input with the current weights. Tried on a copy of the layer."""
    inputs = _tensors(node)
    if len(inputs) != 1 or len(node.args) != 1 or node.kwargs or inputs[0].meta.get("spec") is None:
        return False
    spec = inputs[0].meta["spec"]
    if not spec.is_float:
        return False
    try:
        trial = detached_copy(layer)
        if any(p.device.type == "meta" for p in (*trial.parameters(), *trial.buffers())):
            trial = trial.to_empty(device="cpu")
            for tensor in (*trial.parameters(), *trial.buffers()):
                tensor.data.fill_(1)
        trial = trial.cpu().eval()
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
            x = torch.zeros(spec.shape, dtype=spec.dtype)
            if names is None:
                moved = [x.requires_grad_(True)]
            else:
                moved = [p.requires_grad_(True) for n, p in trial.named_parameters() if n in names]
                for parameter in moved:
                    parameter.data.zero_()
                x.normal_()
            out = trial(x)
            if not isinstance(out, torch.Tensor) or bool(out.detach().any()):
                return False
            gradients = torch.autograd.grad(out, moved, torch.randn_like(out), allow_unused=True)
        return any(g is not None and bool(g.any()) for g in gradients)
    except Exception:
        return False


def _parameter(modules: nn.Module, name: str) -> Any:
    path, _, field = name.rpartition(".")
    return submodule(modules, path)._parameters.get(field)


def _is_parameter(node: fx.Node, modules: nn.Module) -> bool:
    if node.op != "get_attr":
        return False
    try:
        return isinstance(_parameter(modules, str(node.target)), nn.Parameter)
    except AttributeError:
        return False


def _tensors(node: fx.Node) -> list[fx.Node]:
    """The tensor arguments of a call, without sizes; those in lists (torch.cat) too."""
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
    """Raise `UsageError` for a trained model: a consistent start would overwrite learnt weights."""
    why = trained(model)
    if why:
        raise UsageError(
            f"init='consistent' sets residual branches of the model to zero, and this model was trained: {why}. "
            f"Use aux_init='copy' for it, or start from a fresh model"
        )


def trained(model: nn.Module) -> str | None:
    """A sign that the model was trained, or None."""
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
