"""Boards and failures: what a rank was doing, and which failure was the first cause."""

from __future__ import annotations

import pytest

from lpcompile.core.trace import KINDS
from lpcompile.runtime.launch import board as boards
from lpcompile.runtime.launch.board import Board, Doing, Failure, failure_of, first_cause


def test_the_board_is_read_as_it_was_written(tmp_path):
    board = Board(tmp_path / "0")
    assert str(board.read()) == "before the first step"
    board.note(7, "wait λ1[-1]")
    seen = Board(tmp_path / "0").read()
    assert (seen.step, seen.text, seen.blocked, seen.watched) == (7, "wait λ1[-1]", True, False)
    board.note(8, "forward")
    assert Board(tmp_path / "0").read().watched
    board.note(8, "x" * 500)
    assert len(Board(tmp_path / "0").read().text) == boards.SIZE - boards.TEXT


def test_the_first_cause_is_not_an_echo():
    doing = Doing(0.0, 1, "forward")
    echo, cause = Failure(0, 1.0, "lost", doing, lost=True), Failure(1, 2.0, "failed", doing)
    assert first_cause([echo, cause]) is cause
    assert first_cause([echo]) is echo


@pytest.mark.parametrize("op", KINDS["wait"])
def test_a_rank_that_waits_for_others_is_not_taken_for_hanging(op):
    assert not Doing(0.0, 3, f"{op} X1").watched and Doing(0.0, 3, "send X1 to 1").watched


def test_work_between_steps_is_named_and_may_take_long(tmp_path, monkeypatch):
    monkeypatch.setattr(boards, "own", Board(tmp_path / "0"))
    with boards.away(4, "saving a checkpoint"):
        seen = boards.own.read()
        assert str(seen) == "step 4, saving a checkpoint" and not seen.watched
    assert str(boards.own.read()) == "step 4, between steps"


def test_a_lost_connection_is_an_echo_and_an_error_is_a_cause():
    echo = failure_of(RuntimeError("Connection closed by peer [127.0.0.1]:1"), 0)
    cause = failure_of(ValueError("the loss is broken"), 5)
    assert echo.lost and not cause.lost and first_cause([echo, cause]) is cause
    assert (
        cause.say(4) == "rank 5 (stage 1 of replica 1) failed: ValueError: the loss is broken (before the first step)"
    )


def test_an_error_of_the_users_own_connection_is_a_cause():
    with pytest.raises(ConnectionError) as caught:
        raise ConnectionError("Connection to the log server timed out")
    assert not failure_of(caught.value, 0).lost
