"""Long lines break as ruff breaks them."""

from __future__ import annotations

import pytest

from lpcompile.passes.codegen.text.format import indent, split_commas, wrap


def test_a_short_line_stays() -> None:
    assert wrap("f(a, b)", 10) == ["f(a, b)"]


def test_arguments_move_to_a_line_of_their_own_and_then_to_one_each() -> None:
    assert wrap("x = call(first, second)", 20) == ["x = call(", "    first, second", ")"]
    assert wrap("x = call(first, second)", 16) == ["x = call(", "    first,", "    second,", ")"]


def test_a_comprehension_gets_no_trailing_comma() -> None:
    line = "y = [layer(width) for _ in range(9)]"
    assert wrap(line, 35) == ["y = [", "    layer(width) for _ in range(9)", "]"]
    assert wrap(line, 30)[-2:] == ["    )", "]"]


def test_a_line_without_brackets_cannot_break() -> None:
    assert wrap("a = " + "b" * 30, 20) == ["a = " + "b" * 30]
    assert wrap("a = function_of_nothing()", 20) == ["a = function_of_nothing()"]


@pytest.mark.parametrize(
    ("text", "parts"), [("a, b", ["a", " b"]), ("f(a, b), c", ["f(a, b)", " c"]), ("'x,y', z", ["'x,y'", " z"])]
)
def test_commas_inside_brackets_and_strings_do_not_split(text: str, parts: list[str]) -> None:
    assert split_commas(text) == parts


def test_empty_lines_are_not_indented() -> None:
    assert indent(["a", ""], 2) == ["        a", ""]
