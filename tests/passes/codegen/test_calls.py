"""One step as an expression: brackets only where precedence asks for them."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from lpcompile import EmitError
from lpcompile.passes.codegen.calls import argument, expression, operation, symbol_text
from lpcompile.passes.codegen.operators import Expr
from lpcompile.passes.codegen.text.values import Names
from lpcompile.passes.graph import calls


def text(function: Any, *args: Any, method: bool = False, **kwargs: Any) -> str:
    """The source of a call whose arguments are given as expressions or constants."""
    graph, values = fx.Graph(), {}

    def node(value: Any) -> Any:
        if isinstance(value, list):
            return [node(v) for v in value]
        if not isinstance(value, Expr):
            return value
        made = graph.placeholder("p")
        values[made] = value
        return made

    arguments = tuple(map(node, args))
    step = (graph.call_method if method else graph.call_function)(function, arguments, kwargs)
    names = Names()
    return expression(operation(step, names), values.__getitem__, lambda path: f"self.{path}", names, "here").text


X, SUM = Expr("x"), Expr("a + b", 10)


def test_operators_are_bracketed_by_precedence() -> None:
    assert text(operator.mul, SUM, X) == "(a + b) * x"
    assert text(operator.add, SUM, X) == "a + b + x"
    assert text(operator.sub, X, SUM) == "x - (a + b)"
    assert text(operator.neg, SUM) == "-(a + b)"
    assert text(operator.lt, Expr("a < b", 5), X) == "(a < b) < x"
    assert text("add", X, 1, method=True) == "x + 1"


def test_powers_have_spaces_only_around_complex_sides() -> None:
    assert text(operator.pow, X, 2) == "x**2"
    assert text(operator.pow, Expr("f(x)"), 2) == "f(x) ** 2"
    assert text(operator.pow, -1, X) == "(-1)**x"


def test_indices_and_attributes() -> None:
    assert text(operator.getitem, SUM, 0) == "(a + b)[0]"
    assert text(operator.getitem, X, (..., slice(None, 2), None)) == "x[..., :2, None]"
    assert text(operator.getitem, X, slice(1, None, 2)) == "x[1::2]"
    assert text(getattr, X, "shape") == "x.shape"


def test_methods_and_functions() -> None:
    assert text("view", SUM, -1, 2, method=True) == "(a + b).view(-1, 2)"
    assert text(torch.cat, [X, X], dim=1) == "torch.cat([x, x], dim=1)"


def test_a_keyword_that_equals_the_default_is_left_out_but_training_is_written() -> None:
    assert text(F.dropout, X, p=0.5, training=True) == "F.dropout(x, training=True)"
    assert text(F.dropout, X, p=0.1, training=True) == "F.dropout(x, p=0.1, training=True)"
    assert text(F.scaled_dot_product_attention, X, X, X, is_causal=False) == "F.scaled_dot_product_attention(x, x, x)"


def test_a_keyword_that_is_no_identifier_is_unpacked() -> None:
    assert text(torch.cat, [X], **{"a b": 1}) == 'torch.cat([x], **{"a b": 1})'


def test_wrappers_become_with_contexts() -> None:
    graph, names = fx.Graph(), Names()
    x = graph.placeholder("x")
    off = operation(graph.call_function(calls.NoGrad(torch.relu), (x,)), names)
    assert (off.target, off.contexts, off.together) == (torch.relu, ("torch.no_grad()",), True)
    cast = calls.Autocast(torch.relu, ("cpu", torch.bfloat16, True, True))
    on = operation(graph.call_function(cast, (x,)), names)
    assert (on.contexts, on.together) == (('torch.autocast("cpu", torch.bfloat16)',), False)


def test_augmented_assignments_are_recognised() -> None:
    graph, names = fx.Graph(), Names()
    x = graph.placeholder("x")
    assert operation(graph.call_function(operator.iadd, (x, 1)), names).in_place == "+="
    assert operation(graph.call_method("mul_", (x, 2)), names).in_place == "*="
    assert operation(graph.call_method("add_", (x, 2), {"alpha": 3}), names).in_place is None
    assert operation(graph.call_function(operator.setitem, (x, 0, 1)), names).is_assignment


def test_a_value_without_source_is_refused_with_its_place() -> None:
    with pytest.raises(EmitError, match="here cannot be written as code: it uses a builtins.object object; keep"):
        text(torch.relu, object())
    with pytest.raises(EmitError, match="pass a plain value"):
        argument(object(), lambda node: X, Names(), "here")


def test_a_device_is_read_off_an_input() -> None:
    graph = fx.Graph()
    device = graph.call_function(calls.device_of, (graph.placeholder("x"),))
    assert symbol_text(device, lambda node: X).text == "x.device"
