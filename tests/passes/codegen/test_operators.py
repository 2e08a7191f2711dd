"""Signs and precedence of Python's operators."""

from __future__ import annotations

import ast
import operator

import pytest

from lpcompile.passes.codegen.operators import ATOM, INFIX, Expr, infix, is_operator, scaled, size_text

X, SUM = Expr("x"), Expr("a + b", 10)


@pytest.mark.parametrize("outer", [sign for sign, _ in INFIX.values()])
@pytest.mark.parametrize("inner", [sign for sign, _ in INFIX.values()])
def test_brackets_keep_the_tree_of_nested_operators(outer: str, inner: str) -> None:
    left, right = Expr("a"), Expr("b")
    nested = infix(inner, left, right)
    for text, brackets in (
        (infix(outer, nested, X).text, f"(a {inner} b) {outer} x"),
        (infix(outer, X, nested).text, f"x {outer} (a {inner} b)"),
    ):
        assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(brackets))


def test_what_is_an_operator() -> None:
    assert is_operator(operator.add) and is_operator(operator.neg)
    assert not is_operator(operator.getitem) and not is_operator([])


def test_sizes_follow_the_batch() -> None:
    assert size_text("x", 0, 1).text == "x.shape[0]"
    assert size_text("x", 1, 4) == Expr("x.shape[1] // 4", 11)
    assert scaled(Expr("batch"), 3, -1).text == "3 * batch - 1"
    assert scaled(SUM, 3, 0).text == "3 * (a + b)"
    assert scaled(X, 1, 0).level == ATOM
