"""Low-rank layers: one layer factored into two thinner ones. Thins a stem whose output is the residual stream.

A convolution to few channels, then a 1x1 convolution to the original number; linear layers alike.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from lpcompile.passes.auxnet.channels import CONVOLUTIONS
from lpcompile.passes.graph.module import submodule

MIN_RANK = 4


def sides(layer: Any) -> tuple[int, int] | None:
    """Rows and columns of the weight matrix of a layer that can be split; None for other layers."""
    if type(layer) in CONVOLUTIONS and layer.groups == 1 and not layer._forward_pre_hooks:
        return int(layer.out_channels), int(layer.weight[0].numel())
    if type(layer) is nn.Linear and not layer._forward_pre_hooks:
        return int(layer.out_features), int(layer.in_features)
    return None


def candidates(graph: fx.Graph, modules: nn.Module) -> dict[fx.Node, tuple[int, int]]:
    """The layers that run once and can be split."""
    calls: dict[str, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls.setdefault(str(node.target), []).append(node)
    found = {nodes[0]: sides(submodule(modules, target)) for target, nodes in calls.items() if len(nodes) == 1}
    return {node: size for node, size in found.items() if size is not None}


def rank(size: tuple[int, int], share: float) -> int:
    return max(MIN_RANK, round(share * min(size)))


def scale(size: tuple[int, int], rank: int) -> float:
    """Cost of the two layers relative to the original."""
    return rank / size[0] + rank / size[1]


def insert(graph: fx.Graph, node: fx.Node) -> str:
    """Insert a call of the second layer after the first; returns the second layer's name."""
    target = f"{node.target}_up"
    with graph.inserting_after(node):
        second = graph.create_node("call_module", target, (node,))
    second.meta = {**node.meta, "path": target, "flops": 0, "backward_flops": 0}
    node.replace_all_uses_with(second, delete_user_cb=lambda user: user is not second)
    return target


def split_layer(layer: Any, rank: int, values: bool) -> tuple[nn.Module, nn.Module]:
    """The two layers; with `values`, their product is the best approximation of this rank (truncated SVD)."""
    like: dict[str, Any] = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    bias = layer.bias is not None
    first: nn.Module
    second: nn.Module
    if isinstance(layer, nn.Linear):
        first = nn.Linear(layer.in_features, rank, bias=False, **like)
        second = nn.Linear(rank, layer.out_features, bias=bias, **like)
    else:
        kind = type(layer)
        first = kind(layer.in_channels, rank, layer.kernel_size, layer.stride, layer.padding, layer.dilation,
                     bias=False, padding_mode=layer.padding_mode, **like)  # fmt: skip
        second = kind(rank, layer.out_channels, 1, bias=bias, **like)
    if values and layer.weight.device.type != "meta":
        with torch.no_grad():
            u, s, v = torch.linalg.svd(layer.weight.flatten(1).float(), full_matrices=False)
            first.weight.copy_((s[:rank, None] * v[:rank]).reshape(first.weight.shape))  # type: ignore[operator]
            second.weight.copy_(u[:, :rank].reshape(second.weight.shape))  # type: ignore[operator]
            if bias:
                second.bias.copy_(layer.bias)  # type: ignore[operator]
    return first, second
