"""How a torch function is written as an fx node, and the functions that a recording treats specially."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from lpcompile.passes.graph.tree import flatten

_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
_COMPARE = "lt le gt ge eq ne".split()
_OPERATORS: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": getattr(operator, f"{name}_" if name in ("and", "or") else name) for name in _BINARY + _COMPARE},
    **{f"__i{name}__": getattr(operator, f"i{name}") for name in _BINARY},
    "__getitem__": operator.getitem,
    "__neg__": operator.neg,
    "__invert__": operator.invert,
}
_REVERSED = {f"__r{name}__": _OPERATORS[f"__{name}__"] for name in _BINARY}

# They turn a tensor into a Python value: the code after them may branch on data that the next batch does not have.
VALUE_READS = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "equal",
               "__contains__", "allclose", "is_nonzero", "__array__"}  # fmt: skip
_TENSOR_HOOKS = {"register_hook", "register_post_accumulate_grad_hook", "retain_grad"}
_GRADIENTS = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)
_SIZES = {"shape", "size", "__len__", "numel", "nelement", "element_size"}


def reads_size(func: Any, name: str) -> bool:
    """Whether a function tells Python a size, on which the graph may then depend."""
    return name in _SIZES or (name == "__get__" and func.__self__.__name__ in _SIZES)


def decides_size(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors whose values decide the shape of a result that depends on values: of an index, the mask alone."""
    return flatten(args[1:] if name in ("__getitem__", "masked_select") else (args, kwargs))[0]


def is_no_step(func: Any, name: str) -> str:
    """Why a call cannot be a step of a graph; empty if it can."""
    if func in _GRADIENTS:
        return f"forward takes a gradient itself, by {name}()"
    return f"forward calls {name}() on a tensor" if name in _TENSOR_HOOKS else ""


def operation(func: Any, name: str, args: Any, kwargs: Any) -> tuple[str, Any, Any, Any]:
    """Op, target, args and kwargs of the node for `func(*args, **kwargs)`.

    >>> operation(torch.Tensor.__radd__, "__radd__", (x, 1), {})
    ('call_function', operator.add, (1, x), {})
    """
    if name == "__get__":
        return "call_function", getattr, (args[0], func.__self__.__name__), {}
    owner = getattr(func, "__objclass__", None)
    is_method = owner in (torch.Tensor, torch._C.TensorBase) or (
        isinstance(func, types.FunctionType) and func.__module__ == "torch._tensor" and hasattr(torch.Tensor, name)
    )
    if is_method or name in _OPERATORS or name in _REVERSED:
        if name in _OPERATORS and not kwargs:
            return "call_function", _OPERATORS[name], args, {}
        if name in _REVERSED and len(args) == 2 and not kwargs:
            return "call_function", _REVERSED[name], (args[1], args[0]), {}
        return "call_method", name, args, kwargs
    return "call_function", func, args, kwargs
