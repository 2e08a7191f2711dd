"""What the runtime needs of a compiled program. `lpcompile.program.Program` has it, compiled here or loaded."""

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
        """One for each boundary; none where the plan's method needs none."""
        ...

    @property
    def heads(self) -> Sequence[nn.Module]:
        """One for each stage but the last; derived when they are first asked for."""
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

    def lean_stage(self, k: int) -> nn.Module | None:
        """Stage k as training runs it, in less memory; None where that is the stage itself."""
        ...

    def train(self, mode: bool = True) -> Any: ...


def output_tree(program: CompiledProgram, training: bool) -> OutputTree:
    """The structure of the model's output in this mode."""
    found: OutputTree = program.captured._lp.trees[training]
    return found
