"""The interface between a compiled program and the runtime; `lpcompile.program.Program` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from lpcompile.core.plan import Plan
from lpcompile.core.stage_io import TensorSpec


class OutputTree(Protocol):
    """The structure of the model's output, around its tensors."""

    @property
    def count(self) -> int: ...

    def unflatten(self, leaves: Sequence[Any]) -> Any: ...


class CompiledProgram(Protocol):
    """A model cut into K stages. Their records are read by `lpcompile.core.stage_io.io_of`."""

    @property
    def plan(self) -> Plan: ...

    @property
    def module(self) -> nn.Module:
        """The user's model, whose parameters the stages share."""
        ...

    @property
    def stages(self) -> Sequence[nn.Module]: ...

    @property
    def auxnets(self) -> Sequence[nn.Module]:
        """One for each boundary; derived when they are first asked for, where the plan's method needs none."""
        ...

    @property
    def heads(self) -> Sequence[nn.Module]:
        """One per stage except the last; derived on first use."""
        ...

    @property
    def captured(self) -> Any:
        """The undivided graph: a module, unless the program was loaded from code."""
        ...

    @property
    def how(self) -> Any:
        """The options of the compilation, from which other processes compile the same program."""
        ...

    @property
    def input_specs(self) -> Sequence[TensorSpec]:
        """Of the tensors of a call, in the order of `flat_inputs`."""
        ...

    def flat_inputs(self, x: Any) -> list[Tensor]:
        """The tensors of a call: x is a tensor, a tuple of arguments or a dict."""
        ...

    def call_of(self, tensors: list[Any]) -> dict[str, Any]:
        """The opposite of `flat_inputs`: the arguments of a call by name."""
        ...

    @property
    def example(self) -> list[Tensor] | None:
        """The tensors of the call that the model was compiled for, where they are known."""
        ...

    def lean_stage(self, k: int) -> nn.Module | None:
        """Stage k as training runs it, in less memory; None if that is the stage itself."""
        ...

    def train(self, mode: bool = True) -> Any: ...


def output_tree(program: CompiledProgram, training: bool) -> OutputTree:
    """The structure of the model's output in this mode."""
    found: OutputTree = program.captured._lp.trees[training]
    return found
