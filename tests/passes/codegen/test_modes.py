"""One body for training and evaluation."""

from __future__ import annotations

from lpcompile.passes.codegen.modes import merge


def test_equal_bodies_stay() -> None:
    assert merge(["return x"], ["return x"]) == ["return x"]


def test_a_flag_follows_the_mode() -> None:
    assert merge(["x = F.dropout(x, training=True)"], ["x = F.dropout(x, training=False)"]) == [
        "x = F.dropout(x, training=self.training)"
    ]
    assert merge(["f(x, a=False)"], ["f(x, a=True)"]) == ["f(x, a=not self.training)"]
    assert merge(["f(x, p=0.1)"], ["f(x, p=0)"]) == ["f(x, p=0.1 if self.training else 0)"]


def test_different_lines_branch_between_the_common_ones() -> None:
    assert merge(["a", "b", "d"], ["a", "c", "d"]) == ["a", "if self.training:", "    b", "else:", "    c", "d"]
    assert merge(["a", "b", "d"], ["a", "d"]) == ["a", "if self.training:", "    b", "d"]
    assert merge(["a", "d"], ["a", "c", "d"]) == ["a", "if not self.training:", "    c", "d"]


def test_a_returning_branch_needs_no_else() -> None:
    assert merge(["a", "return b"], ["a", "return c"]) == ["a", "if self.training:", "    return b", "return c"]


def test_a_block_is_not_torn_apart() -> None:
    train, evaluate = ["with a:", "    b", "    c"], ["with a:", "    b", "    d"]
    assert merge(train, evaluate) == ["if self.training:", *(f"    {line}" for line in train), "else:",
                                      *(f"    {line}" for line in evaluate)]  # fmt: skip


def test_a_difference_inside_a_string_branches() -> None:
    assert merge(['f("a=True, b")'], ['f("a=False, b")'])[0] == "if self.training:"
