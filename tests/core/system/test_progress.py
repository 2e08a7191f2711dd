"""Progress of long work."""

from __future__ import annotations

from lpcompile.core.system.progress import rising, within


def test_work_that_is_done_again_does_not_move_the_bar_back() -> None:
    seen: list[tuple[float, str]] = []
    shown = within(rising(lambda share, what: seen.append((share, what))), 0.5, 1.0)
    for share, what in ((0.0, "first"), (0.5, "second"), (0.0, "first again"), (1.0, "")):
        shown(share, what)
    assert seen == [(0.5, "first"), (0.75, "second"), (0.75, "first again"), (1.0, "")]
