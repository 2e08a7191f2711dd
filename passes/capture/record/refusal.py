"""Refusals: what cannot be recorded faithfully, and which module is to blame."""

from __future__ import annotations

from typing import Any

from lpcompile.passes.capture.record.values import source_line

SIZED_BY_DATA = "the shape of a result depends on the values in a tensor"


class Unrecordable(Exception):
    """Something in the forward of module `path` cannot be recorded."""

    def __init__(self, path: str, reason: str, source: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.path, self.reason, self.source, self.remedy = path, reason, source, remedy
        self.also: list[Unrecordable] = []  # others found in the same recording
        self.drawn = False  # Python reads a value made of random draws alone: perhaps a layer that is skipped at random
        self.of_inputs = False  # Python reads a number that is made of inputs alone
        self.chooser: Any = None  # the function that forward called with its layers and that read the value
        self.opens = ""  # a layer that can be recorded step by step instead
        self.stray = False  # a tensor of unknown origin: perhaps from a cache that an earlier recording filled


class ModuleTrail:
    """The stack of modules whose forward is running, and the first failure in it."""

    def __init__(self) -> None:
        self.stack: list[str] = [""]
        self.failed_at: tuple[str, str] | None = None  # module path and source line
        self.refused: Unrecordable | None = None

    @property
    def path(self) -> str:
        """The innermost module."""
        return self.stack[-1]

    def fail(self) -> None:
        """Remember where an exception began; the frames above it see the same exception later."""
        if self.failed_at is None:
            self.failed_at = (self.path, source_line())

    def refuse(self, reason: str, opens: str = "") -> Unrecordable:
        """An error to raise. It is remembered, because forward may catch it and take another branch."""
        self.fail()
        refusal = Unrecordable(self.path, reason, source_line())
        refusal.opens = opens
        self.refused = self.refused or refusal
        return refusal
