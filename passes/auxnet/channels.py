"""Channel pruning: which channels of a graph can be removed together, and layers with fewer of them.

A channel set holds the layers that must shrink together: producers of the channels, layers that treat each channel
separately, and consumers. It can be thinned if none of its channels reach any other node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn
from torch.nn.modules.activation import MultiheadAttention, Softmax, Softmax2d, Threshold
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import Conv1d, Conv2d, Conv3d
from torch.nn.modules.dropout import _DropoutNd

from lpcompile.passes.graph.module import submodule

CONVOLUTIONS = (Conv1d, Conv2d, Conv3d)
POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
         nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)  # fmt: skip
ELEMENTWISE = set(
    "relu relu6 gelu silu sigmoid tanh hardswish hardsigmoid leaky_relu elu selu mish softplus dropout contiguous "
    "pow exp square sqrt rsqrt neg clone erf".split()
)
BINARY = set("add sub mul div truediv iadd isub imul add_ mul_ sub_ div_".split())
MIN_CHANNELS = 8  # and the granularity of thinning: odd counts are slower, not faster


@dataclass
class ChannelSet:
    """The nodes of one set: `makers` produce its channels, `takers` consume them. The count must divide by `step`."""

    channels: int
    makers: list[fx.Node] = field(default_factory=list)
    takers: list[fx.Node] = field(default_factory=list)
    between: list[fx.Node] = field(default_factory=list)
    step: int = 1

    @property
    def nodes(self) -> list[fx.Node]:
        return [*self.makers, *self.between, *self.takers]

    def thinned(self, share: float) -> int:
        """Number of channels left at this share."""
        step = math.lcm(self.step, MIN_CHANNELS if self.channels >= 4 * MIN_CHANNELS else 1)
        step = self.step if step > self.channels else step
        return max(step, min(self.channels, round(share * self.channels / step) * step))


def channel_sets(graph: fx.Graph, modules: nn.Module) -> list[ChannelSet]:
    """All sets of the graph that can be thinned, in program order. Layers with state that run twice are left alone."""
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[str(node.target)] = calls.get(str(node.target), 0) + 1
    layers = {n: submodule(modules, str(n.target)) for n in graph.nodes if n.op == "call_module"}
    once = {n for n in layers if calls[str(n.target)] == 1 or not layers[n].state_dict()}
    found: list[ChannelSet] = []
    seen: set[fx.Node] = set()
    for node in graph.nodes:
        if node in layers and node not in seen and (made := _makes(layers[node])):
            grown = _Growth(layers, once, made, _channel_dim(node, layers[node])).grow(node)
            if grown is not None:
                seen.update(grown.makers)
                found.append(grown)
    return found


class _Growth:
    """Grows a set from one maker over all nodes that must shrink with it; gives up if a channel leaves the set."""

    def __init__(self, layers: dict[fx.Node, nn.Module], once: set[fx.Node], channels: int, dim: int) -> None:
        self.layers, self.once, self.dim = layers, once, dim
        self.set = ChannelSet(channels)
        self.values: dict[fx.Node, None] = {}  # nodes whose result has the channels

    def grow(self, maker: fx.Node) -> ChannelSet | None:
        pending = [maker]
        while pending:
            node = pending.pop()
            if node in self.values:
                continue
            if node in self.layers and node not in self.once:
                return None
            self.values[node] = None
            sources = self._sources(node)
            if sources is None or not node.users:
                return None
            pending += sources
            for user in node.users:
                if self._takes(user, node):
                    if user not in self.set.takers:
                        self.set.takers.append(user)
                elif user not in self.values:
                    pending.append(user)
        return self.set

    def _sources(self, node: fx.Node) -> list[fx.Node] | None:
        """Inputs of a node that carry the same channels; None if the node cannot belong to the set."""
        if not self._fits(node):
            return None
        layer = self.layers.get(node)
        if layer is not None and _makes(layer) == self.set.channels and _channel_dim(node, layer) == self.dim:
            self.set.makers.append(node)
            return []
        if layer is not None:
            step = _keeps(layer, self.set.channels, self.dim)
            if step is None:
                return None
            self.set.step = math.lcm(self.set.step, step)
        elif not self._is_elementwise(node):
            return None
        self.set.between.append(node)
        inputs = [n for n in node.all_input_nodes if "symbol" not in n.meta]
        if not all(self._fits(n) for n in inputs):
            return None
        return inputs

    def _fits(self, node: fx.Node) -> bool:
        spec = node.meta.get("spec")
        if spec is None or node.op in ("placeholder", "output", "get_attr") or self.dim >= len(spec.shape):
            return False
        return bool(spec.shape[self.dim] == self.set.channels)

    def _takes(self, user: fx.Node, value: fx.Node) -> bool:
        layer = self.layers.get(user)
        return (
            layer is not None
            and user in self.once
            and _takes_in(layer) == self.set.channels
            and bool(user.args)
            and user.args[0] is value
            and _channel_dim(user, layer) == self.dim
        )

    def _is_elementwise(self, node: fx.Node) -> bool:
        if node.op not in ("call_function", "call_method"):
            return False
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        if name in BINARY or name in ELEMENTWISE:
            return True
        if name in ("mean", "adaptive_avg_pool2d", "avg_pool2d", "max_pool2d"):  # over positions, never over channels
            spec = node.meta.get("spec")
            source = node.args[0].meta.get("spec") if isinstance(node.args[0], fx.Node) else None
            return bool(spec and source and len(spec.shape) == len(source.shape) and self.dim == 1)
        return False


def _makes(layer: nn.Module) -> int:
    """Number of output channels of a layer that mixes all its inputs; 0 for other layers."""
    return _width(layer, "out_channels", "out_features", "nf")


def _takes_in(layer: nn.Module) -> int:
    """Number of input channels of a layer that mixes them all; 0 for other layers."""
    return _width(layer, "in_channels", "in_features", "nx")


def _width(layer: Any, convolution: str, linear: str, transposed: str) -> int:
    """Of layers that mix all channels: convolutions without groups, linear layers, and transformers' Conv1D."""
    if layer._forward_pre_hooks:  # torch.nn.utils.weight_norm recomputes the weight at each call
        return 0
    if type(layer) in CONVOLUTIONS:
        return int(getattr(layer, convolution)) if layer.groups == 1 else 0
    if type(layer) is nn.Linear:
        return int(getattr(layer, linear))
    return int(getattr(layer, transposed)) if type(layer).__name__ == "Conv1D" and hasattr(layer, transposed) else 0


def _channel_dim(node: fx.Node, layer: nn.Module) -> int:
    spec = node.meta.get("spec")
    dims = len(spec.shape) if spec is not None else 0
    if isinstance(layer, CONVOLUTIONS):
        return dims - layer.weight.dim() + 1
    return dims - 1


def _keeps(layer: Any, channels: int, dim: int) -> int | None:
    """Channel granularity of a layer that treats channels (or groups of them) separately; None for other layers."""
    if layer._forward_pre_hooks:
        return None
    if isinstance(layer, _BatchNorm):
        return 1 if layer.num_features == channels and dim == 1 else None
    if type(layer) in CONVOLUTIONS and layer.in_channels == layer.out_channels == channels:
        return channels // layer.groups if layer.groups > 1 else None
    if type(layer) is nn.LayerNorm:
        return 1 if tuple(layer.normalized_shape) == (channels,) and dim > 1 else None
    if isinstance(layer, POOLS):
        return 1 if dim == 1 else None
    if isinstance(layer, (MultiheadAttention, Softmax, Softmax2d, Threshold, nn.GLU, nn.PReLU)):
        return None
    activation = type(layer).__module__ == "torch.nn.modules.activation"
    plain = isinstance(layer, (nn.Identity, _DropoutNd)) or activation
    return 1 if plain and next(layer.parameters(), None) is None else None


def thin(layer: Any, makes: int | None, takes: int | None, keeps: int | None) -> None:
    """Cut a layer down, in place, to its first channels: its outputs, its inputs, or those it treats separately."""
    if keeps is not None:
        _thin_keeper(layer, keeps)
        return
    transposed = type(layer).__name__ == "Conv1D"
    weight = layer.weight.detach()
    if makes is not None:
        weight = weight.narrow(1 if transposed else 0, 0, makes)
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias.detach()[:makes].clone())
        _set(layer, ("out_channels", "out_features", "nf"), makes)
    if takes is not None:
        weight = weight.narrow(0 if transposed else 1, 0, takes)
        _set(layer, ("in_channels", "in_features", "nx"), takes)
    layer.weight = nn.Parameter(weight.clone())


def _thin_keeper(layer: Any, channels: int) -> None:
    if type(layer) in CONVOLUTIONS:
        each = layer.in_channels // layer.groups
        _set(layer, ("in_channels", "out_channels"), channels)
        _set(layer, ("groups",), channels // each)
    elif isinstance(layer, nn.LayerNorm):
        layer.normalized_shape = (channels,)
    else:
        _set(layer, ("num_features",), channels)
    for name, parameter in layer._parameters.items():
        if parameter is not None:
            layer._parameters[name] = nn.Parameter(parameter.detach()[:channels].clone())
    for name, buffer in layer._buffers.items():
        if buffer is not None and buffer.dim():
            layer._buffers[name] = buffer[:channels].clone()


def _set(layer: nn.Module, names: tuple[str, ...], value: int) -> None:
    for name in names:
        if hasattr(layer, name):
            setattr(layer, name, value)
