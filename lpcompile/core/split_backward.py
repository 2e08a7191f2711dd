"""A backward in two parts: input gradients now, the costly weight gradients later.

A convolution or matrix product computes the gradients of its input and of its weight by kernels of their own, so the
second can wait: the first part keeps the gradient that reaches the operation, the second goes on from there. All other
weights (of norms, embeddings, a weight that is used twice or never meets an input) get their gradients in the first
part, in the same pass. So nothing is computed twice, and gradients are plain training's for any stage.

Gradients of micro-batches are added in their order, to the bit. Which operations a layer runs may depend on the number
of samples, so a weight that waited in one micro-batch need not in the next: from then on its gradients are all `Kept`
for the second part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

# Operations whose weight gradients take about as long as their input gradients.
ACCUMULATES = torch._C._functions.AccumulateGrad
COSTLY = ("ConvolutionBackward", "AddmmBackward", "MmBackward", "BmmBackward", "BaddbmmBackward", "LinearBackward")


class Deferred:
    """The weights of one operation, and the gradient that has reached it."""

    def __init__(self, node: Node, weights: Sequence[nn.Parameter]) -> None:
        self.node, self.weights = node, tuple(weights)
        self.arrived: tuple[Tensor | None, ...] = ()
        self.hook = node.register_prehook(self._keep)

    def _keep(self, gradients: tuple[Tensor | None, ...]) -> None:
        self.arrived = gradients

    def gradients(self) -> Sequence[Tensor | None]:
        edges = [GradientEdge(self.node, i) for i, g in enumerate(self.arrived) if g is not None]
        seeds = [g for g in self.arrived if g is not None]
        if not edges:
            return [None] * len(self.weights)
        self.hook.remove()  # or it would keep the same gradients again
        found = _of_convolution(self.node, self.weights, self.arrived)
        return found or torch.autograd.grad(edges, self.weights, seeds, allow_unused=True)


class Kept:
    """A weight's gradient that was computed in the first part and is added in the second."""

    def __init__(self, weight: nn.Parameter, gradient: Tensor) -> None:
        self.weights, self.gradient = (weight,), gradient
        self.arrived: tuple[Tensor | None, ...] = ()

    def gradients(self) -> Sequence[Tensor | None]:
        return [self.gradient]


def input_part(
    pairs: Sequence[tuple[Tensor, Tensor]],
    leaves: Sequence[Tensor],
    weights: Sequence[nn.Parameter],
    together: bool,
    put_off: set[int] | None = None,
) -> tuple[Sequence[Tensor | None], list[Deferred | Kept]]:
    """Gradients of the leaves, and the state from which `weight_part` continues.

    together: compute weight gradients now as well. put_off: weights, by id, whose gradients waited in an earlier
    micro-batch; those of this one are added.
    """
    ends, seeds = [end for end, _ in pairs], [seed for _, seed in pairs]
    if not pairs:
        return [None] * len(leaves), []
    if together or not leaves:
        torch.autograd.backward(ends, seeds)
        return [t.grad for t in leaves], []
    groups = _deferred(ends, leaves, weights)
    later: list[Deferred | Kept] = [*groups]
    waiting = {id(p) for group in groups for p in group.weights}
    put_off = set() if put_off is None else put_off
    put_off |= waiting
    now = [p for p in weights if id(p) not in waiting]
    found = torch.autograd.grad(ends, [*leaves, *now], seeds, retain_graph=bool(groups), allow_unused=True)
    for p, g in zip(now, found[len(leaves) :], strict=True):
        if g is not None and id(p) in put_off:
            later.append(Kept(p, g.clone()))
        else:
            _add(p, g)
    received = {seed.untyped_storage().data_ptr() for seed in seeds}
    own = [g.clone() if g is not None and g.untyped_storage().data_ptr() in received else g for g in found]
    return own[: len(leaves)], later


def weight_part(groups: Sequence[Deferred | Kept]) -> None:
    """Add the gradients that the first part left."""
    for group in groups:
        taken = {g.untyped_storage().data_ptr() for g in group.arrived if g is not None}
        for p, g in zip(group.weights, group.gradients(), strict=True):
            place = g.untyped_storage().data_ptr() if g is not None else 0
            _add(p, g, fresh=place not in taken)
            taken.add(place)


def _of_convolution(
    node: Any, weights: Sequence[nn.Parameter], arrived: tuple[Tensor | None, ...]
) -> list[Tensor | None] | None:
    """Weight gradients of a convolution, by the operation that autograd would run; None: autograd must run it.

    Before autograd runs one node it walks over the whole graph below, which takes longer than a small convolution.
    """
    if node.name() != "ConvolutionBackward0" or any(p._backward_hooks for p in weights):
        return None
    places = [id(getattr(below, "variable", None)) for below, _ in node.next_functions]  # of input, weight and bias
    wanted = [place in {id(p) for p in weights} for place in places]
    if sum(wanted) != len(weights) or wanted[0]:
        return None
    with torch.no_grad():
        found = torch.ops.aten.convolution_backward(
            arrived[0], node._saved_input, node._saved_weight, node._saved_bias_sym_sizes_opt, node._saved_stride,
            node._saved_padding, node._saved_dilation, node._saved_transposed, node._saved_output_padding,
            node._saved_groups, wanted,
        )  # fmt: skip
    return [found[places.index(id(p))] for p in weights]


def _add(p: nn.Parameter, new: Tensor | None, fresh: bool = False) -> None:
    """Accumulate as autograd does, in memory that belongs to the parameter: `new` may be a receive buffer, which the
    next message overwrites. fresh: nothing else uses the memory of `new`, so it becomes the parameter's."""
    if new is None:
        return
    if fresh and p.grad is None and _alone(new, p):
        p.grad = new
        return
    if new.layout != torch.strided:
        p.grad = new if p.grad is None else p.grad + new
    elif p.grad is None:
        p.grad = torch.empty_like(p).copy_(new)
    else:
        p.grad.add_(new)


def _alone(new: Tensor, p: nn.Parameter) -> bool:
    """Whether a gradient has the form of its parameter, and all of its memory."""
    if new.layout != torch.strided or new.stride() != p.stride() or new.dtype != p.dtype:
        return False
    return new.untyped_storage().nbytes() == new.nbytes


def _deferred(ends: Sequence[Tensor], leaves: Sequence[Tensor], weights: Sequence[nn.Parameter]) -> list[Deferred]:
    """The costly operations between inputs and outputs, each with the weights that meet the inputs only there."""
    inputs = {get_gradient_edge(leaf).node for leaf in leaves}
    roots = [get_gradient_edge(end).node for end in ends]
    graph, wanted = _graph(roots), {id(p): p for p in weights}
    leading = {node: id(node.variable) for node in graph if isinstance(node, ACCUMULATES)}
    places = {node: wanted[name] for node, name in leading.items() if name in wanted}
    onward = set[Any]()  # nodes that lead to an input
    for node, following in graph.items():
        if node in inputs or not onward.isdisjoint(following):
            onward.add(node)
    met: dict[Any, set[Any]] = {}  # for each weight's node, the operations where it meets the inputs
    for node, following in graph.items():
        if node in onward:
            for branch in following:
                if branch not in onward:
                    for place in _reached(branch, graph, places):
                        met.setdefault(place, set()).add(node)
    beside = {place for root in roots if root not in onward for place in _reached(root, graph, places)}
    groups: dict[Any, list[nn.Parameter]] = {}
    for place, nodes in met.items():
        (node, *others) = nodes
        if not others and place not in beside and node.name().startswith(COSTLY):
            groups.setdefault(node, []).append(places[place])
    return [Deferred(node, found) for node, found in groups.items()]


def _graph(roots: Iterable[Any]) -> dict[Any, tuple[Any, ...]]:
    """All nodes that a backward from the roots reaches, each after those it leads to, with these."""
    found, seen = dict[Any, tuple[Any, ...]](), dict[Any, tuple[Any, ...]]()
    stack = list(roots)
    while stack:
        node = stack[-1]
        if node in seen:
            stack.pop()
            found.setdefault(node, seen[node])
            continue
        following = seen[node] = tuple(n for n, _ in node.next_functions if n is not None)
        stack += [n for n in following if n not in seen]
    return found


def _reached(root: Any, graph: dict[Any, tuple[Any, ...]], places: dict[Any, nn.Parameter]) -> list[Any]:
    """The weights' nodes that a backward from this one reaches."""
    if not graph[root]:  # most often the weight itself
        return [root] if root in places else []
    found, seen, stack = list[Any](), {root}, [root]
    while stack:
        node = stack.pop()
        if node in places:
            found.append(node)
        new = [n for n in graph[node] if n not in seen]
        seen.update(new)
        stack += new
    return found
