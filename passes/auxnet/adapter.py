"""Adapters: a small network from one tensor's shape to another's, for stages without droppable blocks.

Built from plain layers of torch.nn: a strided convolution between images, linear layers between sequences, otherwise
two linear layers over all features of a sample.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from lpcompile.core.stage_io import TensorSpec

MAX_DENSE_FEATURES = 512  # per sample, on either side of a dense adapter; more are pooled
MIN_BOTTLENECK = 4  # features between two thin linear layers


class Adapter:
    """Maps tensors like `source` to tensors like `target` at a cost of about `flops` per batch at most.

    `connect` adds its nodes to a graph and its modules to `layers`, under names that begin with `prefix`.
    """

    def __init__(
        self,
        prefix: str,
        source: TensorSpec,
        target: TensorSpec,
        flops: float,
        device: torch.device,
        layers: dict[str, nn.Module],
    ) -> None:
        self.prefix, self.source, self.target, self.flops, self.layers = prefix, source, target, flops, layers
        self.like: dict[str, Any] = {"dtype": target.dtype, "device": device}

    def connect(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        self.graph = graph
        if self.source.dtype != self.target.dtype:
            node = self._method("to", node, self.target.dtype)
        here, there = sample(self.source), sample(self.target)
        if here is not None and there is not None:
            if len(here) == len(there) == 3 and here[1] >= there[1] and here[2] >= there[2]:
                return self._image(node, here, there, self.flops / max(1, self.target.shape[0]))
            if len(here) == len(there) == 2:
                return self._tokens(node, here, there)
            if len(here) == 3 and len(there) == 2:
                flat = self._swap(self._method("flatten", node, 2))
                return self._tokens(flat, (here[1] * here[2], here[0]), there)
        return self._dense(node)

    def _image(self, node: fx.Node, here: tuple[int, ...], there: tuple[int, ...], flops: float) -> fx.Node:
        """From one (channels, height, width) to another; height and width may only shrink."""
        (c, h, w), (d, height, width) = here, there
        strides = (h // height, w // width)
        if (-(-h // strides[0]), -(-w // strides[1])) != (height, width):
            node = self._layer("pool", nn.AdaptiveAvgPool2d((height, width)), node)
            strides = (1, 1)
        if 2 * 9 * c * d * height * width <= flops:
            return self._layer("conv", nn.Conv2d(c, d, 3, strides, 1, **self.like), node)
        node = self._layer("depthwise", nn.Conv2d(c, c, 3, strides, 1, groups=c, bias=False, **self.like), node)
        return self._layer("pointwise", nn.Conv2d(c, d, 1, **self.like), node)

    def _tokens(self, node: fx.Node, here: tuple[int, ...], there: tuple[int, ...]) -> fx.Node:
        if here[0] != there[0]:
            mixed = self._layer("tokens", nn.Linear(here[0], there[0], **self.like), self._swap(node))
            node = self._swap(mixed)
        return self._linear("linear", here[1], there[1], self.flops / max(1, self.target.shape[0]) / there[0], node)

    def _linear(self, name: str, inputs: int, outputs: int, flops: float, node: fx.Node) -> fx.Node:
        """A linear layer, or two with a bottleneck where one costs more than `flops` per row."""
        middle = max(MIN_BOTTLENECK, int(flops / (2 * (inputs + outputs))) if flops < math.inf else inputs)
        if 2 * inputs * outputs <= flops or middle >= min(inputs, outputs):
            return self._layer(name, nn.Linear(inputs, outputs, **self.like), node)
        node = self._layer(f"{name}_down", nn.Linear(inputs, middle, bias=False, **self.like), node)
        return self._layer(f"{name}_up", nn.Linear(middle, outputs, **self.like), node)

    def _swap(self, node: fx.Node) -> fx.Node:
        return self._method("transpose", node, 1, 2)

    def _dense(self, node: fx.Node) -> fx.Node:
        source, target = self.source, self.target
        at, inputs = _batch_dim(source), _per_sample(source)
        if at:
            node = self._method("movedim", node, at, 0)
        node = self._method("reshape", node, -1, inputs)
        if inputs > MAX_DENSE_FEATURES:
            node = self._method("unsqueeze", node, 1)
            node = self._layer("pool", nn.AdaptiveAvgPool1d(MAX_DENSE_FEATURES), node)
            node = self._method("squeeze", node, 1)
        outputs = _per_sample(target)
        ends = min(inputs, MAX_DENSE_FEATURES), min(outputs, MAX_DENSE_FEATURES)
        room = self.flops / max(1, _batch(target)) / (2 * sum(ends))
        middle = max(MIN_BOTTLENECK, min(MAX_DENSE_FEATURES // 4, int(room) if room < math.inf else MAX_DENSE_FEATURES))
        node = self._layer("down", nn.Linear(ends[0], middle, **self.like), node)
        node = self._layer("act", nn.ReLU(), node)
        node = self._layer("up", nn.Linear(middle, ends[1], **self.like), node)
        if outputs > MAX_DENSE_FEATURES:
            node = self._method("unsqueeze", node, 1)
            node = noted(self.graph.call_function(F.interpolate, (node, outputs)))
            node = self._method("squeeze", node, 1)
        to, shape = _batch_dim(target), list(target.shape)
        if to is None:  # the target has no batch dimension
            return self._method("reshape", self._method("mean", node, 0), *shape)
        rest = shape[:to] + shape[to + 1 :]
        if to:
            return self._method("movedim", self._method("reshape", node, -1, *rest), 0, to)
        return self._method("reshape", node, -1, *rest)

    def _method(self, name: str, *args: Any) -> fx.Node:
        return noted(self.graph.call_method(name, args))

    def _layer(self, name: str, layer: nn.Module, node: fx.Node) -> fx.Node:
        target = f"{self.prefix}.{name}"
        self.layers[target] = layer
        return noted(self.graph.create_node("call_module", target, (node,)))


def noted(node: fx.Node) -> fx.Node:
    """Give a node that was not captured the metadata that captured nodes have."""
    path = str(node.target) if node.op == "call_module" else ""
    node.meta = {"path": path, "spec": None, "storage": None, "source": "", "flops": 0, "backward_flops": 0,
                 "saved_bytes": 0, "random": False, "writes": (), "state_writes": ()}  # fmt: skip
    return node


def sample(spec: TensorSpec) -> tuple[int, ...] | None:
    """Shape of one sample; None unless the batch is the first dimension and no other."""
    batch = spec.batch or (1,) + (0,) * (len(spec.shape) - 1)
    return spec.shape[1:] if batch and batch[0] == 1 and not any(batch[1:]) else None


def possible(source: TensorSpec, target: TensorSpec) -> bool:
    """Whether an adapter exists: both are floats with one batch dimension (the target may have none)."""
    counts = [sum(map(bool, s.batch)) for s in (source, target)]
    return source.is_float and target.is_float and not target.dtype.is_complex and counts[0] == 1 and counts[1] <= 1


def _batch_dim(spec: TensorSpec) -> int | None:
    return next((i for i, c in enumerate(spec.batch) if c), None)


def _batch(spec: TensorSpec) -> int:
    return next((s // c for s, c in zip(spec.shape, spec.batch, strict=True) if c), 1)


def _per_sample(spec: TensorSpec) -> int:
    return math.prod(c or s for s, c in zip(spec.shape, spec.batch, strict=True))
