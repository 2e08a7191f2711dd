"""Which modules stay whole in the graph: layers do, blocks do not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lpcompile.passes.graph.module import forward_of

# torch.nn modules that only arrange others; their layers are leaves, they themselves are traced through.
CONTAINERS = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.ParameterList,
    nn.ParameterDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is a layer.

    A leaf runs as the user wrote it, so its flags, statistics and randomness stay live. That is right for
    every layer of torch.nn, subclasses included (timm's BatchNormAct2d counts batches in forward), and for a custom
    layer without children that has a few parameters or asks for `self.training` (stochastic depth). Anything else is
    traced: blocks, because cuts fall between and inside them, and parameter-free helpers such as rotary tables,
    because every stage can recompute their results from the inputs.
    """
    if module._backward_hooks or module._backward_pre_hooks or isinstance(module, torch.jit.ScriptModule):
        return True  # hooks must see the module's own call; a script has no Python inside
    if isinstance(module, CONTAINERS):
        return False
    if any(_is_torch_layer(base) for base in type(module).__mro__):
        return True
    if next(module.children(), None) is not None:
        return False
    own = len(list(module.parameters(recurse=False)))
    return 1 <= own <= 3 or _reads_training(module)


def _is_torch_layer(base: type[Any]) -> bool:
    return base is not nn.Module and base.__module__.startswith(("torch.nn.", "torch.ao."))


def _reads_training(module: nn.Module) -> bool:
    code = getattr(forward_of(module), "__code__", None)
    return code is not None and "training" in code.co_names
