"""Names from a model in generated code: identifiers only where Python reads the same name back."""

from __future__ import annotations

import ast

import pytest

from lpcompile.passes.codegen.text.names import camel, class_name, identifier, is_plain, prose, quote


@pytest.mark.parametrize("name", ["conv1", "_hidden", "lam"])
def test_an_ordinary_name_is_plain(name: str) -> None:
    assert is_plain(name)


@pytest.mark.parametrize("name", ["class", "0", "a b", "__mangled", "training", "forward", "é", "ﬁ", ""])
def test_a_name_that_python_or_torch_reads_otherwise_is_not_plain(name: str) -> None:
    assert not is_plain(name)


def test_identifiers_are_lower_case_and_free_of_what_the_code_uses() -> None:
    assert identifier("inputIds", "x") == "input_ids"
    assert identifier("a-b.c", "x") == "a_b_c"
    assert identifier("torch", "x") == "torch_"
    assert identifier("é", "x") == identifier("3d", "x") == "x"


def test_class_names_have_a_fallback() -> None:
    assert class_name("_Dense-Layer") == "DenseLayer"
    assert class_name("123") == class_name("Exception") == "Block"
    assert camel("down_sample.conv") == "DownSampleConv"


@pytest.mark.parametrize("text", ["a", '"', "'", "\\", "\n", "é", "'\""])
def test_a_quoted_string_evaluates_to_itself_in_ascii(text: str) -> None:
    assert quote(text).isascii()
    assert ast.literal_eval(quote(text)) == text


def test_prose_can_end_no_docstring() -> None:
    assert prose('a"""b\n\\c') == "a???b??c"
    assert len(prose("a" * 400)) == 300
