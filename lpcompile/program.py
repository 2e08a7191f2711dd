"""A Program is the user's model with another forward: the same parameters and keys, run stage by stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from lpcompile.core.plan import Plan
from lpcompile.core.stage_io import TensorSpec
from lpcompile.errors import InputError, UsageError
from lpcompile.passes.auxnet.derive import AuxNet
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.signature import example_call, rebuilder
from lpcompile.passes.graph.batch import Different, same_graph
from lpcompile.passes.graph.tree import flatten
from lpcompile.passes.split.gate import staged
from lpcompile.passes.split.in_place import in_place
from lpcompile.passes.split.split import Stage
from lpcompile.trainable import Trainable

if TYPE_CHECKING:
    from lpcompile.planning.options import Options


class Compiled(NamedTuple):
    """What compiling a model for one kind of call gives."""

    captured: Captured
    plan: Plan
    stages: tuple[Stage, ...]
    auxnets: tuple[AuxNet, ...]
    heads: tuple[AuxNet, ...] | None = None  # None if the plan's method has none


class Program(Trainable, nn.Module):
    """What `parallelize` returns.

    `program(x)` is bitwise `model(x)`; `plan` says what went where; `stages` and `auxnets` are the modules; `module` is
    the user's model, whose parameters the stages share; `state_dict()` has its keys. Without example inputs it compiles
    at the first call.
    """

    _lp_model: nn.Module
    _lp_compile: Callable[..., Compiled]
    _lp_capture: Callable[..., Captured]
    _lp_options: Options | None
    _lp_done: Compiled | None
    _lp_variants: dict[tuple[Any, ...], Compiled]
    _lp_heads: tuple[AuxNet, ...] | None
    _lp_auxnets: tuple[AuxNet, ...] | None
    _lp_example: tuple[tuple[Any, ...], dict[str, Any]] | None

    def __init__(
        self, model: nn.Module, compile_for_call: Callable[..., Compiled], capture_call: Callable[..., Captured]
    ) -> None:
        super().__init__()
        # the model's own registries: parameters(), to(), train() and the like see the model's tree and names
        for kind in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
            self.__dict__[kind] = model.__dict__[kind]
        self.__dict__["_lp_model"] = model
        self.__dict__["_lp_compile"] = compile_for_call
        self.__dict__["_lp_capture"] = capture_call
        self.__dict__["_lp_options"] = None
        self.__dict__["_lp_done"] = None
        self.__dict__["_lp_variants"] = {}
        self.__dict__["_lp_heads"] = None
        self.__dict__["_lp_auxnets"] = None
        self.__dict__["_lp_example"] = None
        self.training = model.training

    def compile_for(self, *args: Any, **kwargs: Any) -> Program:
        """Compile for a call with these arguments (any batch size of the same shapes)."""
        done = self._lp_compile(args, kwargs, None)
        self.__dict__.update(_lp_done=done, _lp_variants={call_state(args, kwargs): done}, _lp_heads=None,
                             _lp_auxnets=None, _lp_example=(args, kwargs))  # fmt: skip
        return self

    @property
    def plan(self) -> Plan:
        return self._ready().plan

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self._ready().stages

    @property
    def auxnets(self) -> tuple[AuxNet, ...]:
        """AuxNet k makes what stage k gives to the next one.

        Where the plan's method has none they are derived when they are first asked for, with the plan's budget.
        """
        done = self._ready()
        if done.auxnets or done.plan.K == 1 or not isinstance(done.captured, Captured):
            return done.auxnets
        if self._lp_auxnets is None:
            self.__dict__["_lp_auxnets"] = _auxnets(done, self._lp_options)
        return self._lp_auxnets or ()

    @property
    def heads(self) -> tuple[AuxNet, ...]:
        """Head k maps the output of stage k to the model's outputs, so that the stage has a loss of its own.

        If the plan's method has no heads, they are derived on first use, with the plan's budget.
        """
        done = self._ready()
        if done.heads is not None:
            return done.heads
        if self._lp_heads is None:
            self.__dict__["_lp_heads"] = _heads(done, self._lp_options)
        return self._lp_heads or ()

    @property
    def captured(self) -> Captured:
        """The undivided graph."""
        return self._ready().captured

    @property
    def module(self) -> nn.Module:
        """The user's model with the parameters as they are now."""
        return self._lp_model

    @property
    def how(self) -> Options | None:
        """The options of the compilation; None for a program loaded from emitted code."""
        return self._lp_options

    def graph(self) -> Any:
        """The captured graph as a `networkx.DiGraph`, with stages, units, cuts and costs as attributes."""
        from lpcompile.passes.split.graph_export import program_graph

        if not isinstance(self.captured, Captured):
            raise UsageError("a program that was loaded from emitted code has no captured graph; compile its model")
        return program_graph(self.captured, self.plan, "replicate" if self.how is None else self.how.tied)

    def emit(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Write the program as Python files, data and weights that run without the compiler; see `lpcompile.load`."""
        from lpcompile.emit.write import emit

        return emit(self, directory, overwrite=overwrite)

    def _ready(self) -> Compiled:
        if self._lp_done is None:
            raise InputError(
                "the program is not compiled yet: call it on a batch first, "
                "or pass example_inputs to parallelize, or call program.compile_for(x)"
            )
        return self._lp_done

    def _variant(self, args: Any, kwargs: Any) -> Compiled:
        """The compilation for the current autocast state and the inputs that require gradients; each has its own."""
        state = call_state(args, kwargs)
        if state not in self._lp_variants:
            self._lp_variants[state] = self._lp_compile(args, kwargs, self.plan.world)
        return self._lp_variants[state]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._lp_done is None:
            self.compile_for(*args, **kwargs)
        done = self._variant(args, kwargs)
        captured, stages = done.captured, done.stages
        training = self.module.training  # the model's own flag counts: it may have been switched directly
        self.training = training
        self._check_unchanged(captured, training, args, kwargs)
        for stage in stages:
            if stage.training != training:
                stage._lp_use_mode(training)
            stage._lp_refresh()
        tensors = captured._lp.signature.flat(args, kwargs)
        tree = captured._lp.trees[training]
        return tree.unflatten(staged(stages, tensors, tree.count))

    def _check_unchanged(self, captured: Captured, training: bool, args: Any, kwargs: Any) -> None:
        """Accept a changed number, flag or hook of the model only if the graph is still the same."""
        guard = captured._lp.attribute_guard
        change = guard.changed(training)
        if change is None:
            return
        try:
            same_graph(captured._lp_graphs[training], self._lp_capture(args, kwargs)._lp_graphs[training])
        except Different:
            raise InputError(
                f"{change} when the program was compiled, and that makes another program of it; compile again, "
                f"or keep that module whole with leaf=[...], which then follows such changes"
            ) from None
        guard.accept(training)

    def train(self, mode: bool = True) -> Program:
        self.module.train(mode)
        self.training = mode
        for compiled in self._lp_variants.values():
            for stage in compiled.stages:
                stage._lp_use_mode(mode)
        return self

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """What the tensors of a call look like, in the order of `flat_inputs`."""
        return tuple(spec for _, spec in self.captured._lp.signature.inputs)

    @property
    def example(self) -> list[torch.Tensor] | None:
        """The tensors of the call that was compiled; None for a program loaded from emitted code."""
        if self._lp_example is None:
            return None
        args, kwargs = self._lp_example
        return self.captured._lp.signature.flat(args, kwargs)

    def call_of(self, tensors: list[Any]) -> dict[str, Any]:
        """The opposite of `flat_inputs`: arguments by name, for a call or a trainer's step."""
        args, kwargs = rebuilder(self.captured._lp.signature)(tensors)
        names = list(self.captured._lp.signature.parameters.parameters)
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def flat_inputs(self, x: Any) -> list[torch.Tensor]:
        """The tensors of a call, in the order that stages name them: x is a tensor, a tuple of arguments or a dict."""
        args, kwargs = example_call(self.captured._lp.signature.parameters, x)
        return self.captured._lp.signature.flat(args, kwargs)

    def lean_stage(self, k: int) -> Stage | None:
        """Stage k as training runs it, in less memory (`passes.split.in_place`); None if that is the stage itself."""
        stage = self.stages[k]
        return in_place(stage) if isinstance(stage, Stage) else None  # else it was loaded from code

    def __reduce__(self) -> Any:
        raise TypeError("a Program is made, not stored: save program.state_dict(), program.plan or single stages")

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.load_state_dict(*args, **kwargs)

    def __repr__(self) -> str:
        if self._lp_done is None:
            return f"Program({type(self.module).__name__}, not compiled yet)"
        return f"Program({type(self.module).__name__}, K={self.plan.K})\n{self.plan}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Program:
        raise TypeError("a Program shares its model's parameters; copy the model and compile the copy")


def _heads(done: Compiled, how: Options | None) -> tuple[AuxNet, ...]:
    from lpcompile.planning.auxiliary.heads import make_heads

    if not isinstance(done.captured, Captured):
        raise UsageError(
            f"the program was loaded from code that was emitted for {done.plan.method!r}, which has no heads; "
            f"emit one that is compiled with method='dgl', or give the trainer heads=[...] of your own"
        )
    _refuse_released(done, "heads")
    budgets = [done.plan.aux_budget] * (done.plan.K - 1)
    init = how.aux.init if how is not None and how.aux is not None else "fresh"
    return tuple(m.aux for m in make_heads(done.captured, done.stages, done.plan.boundaries, budgets, init))


def _auxnets(done: Compiled, how: Options | None) -> tuple[AuxNet, ...]:
    from lpcompile.planning.auxiliary.auxnets import derived_auxnets

    _refuse_released(done, "AuxNets")
    return derived_auxnets(done.captured, done.stages, how.aux if how is not None else None)


def _refuse_released(done: Compiled, what: str) -> None:
    meta = {p.device.type == "meta" for stage in done.stages for p in stage.parameters()}
    if meta == {True, False}:  # a model that is all on the meta device never had weights
        raise UsageError(
            f"{what} are derived before training begins, when this process has the weights of all stages: make the "
            f"trainer with a recipe of all its phases (method='1f1b@0.5,dgl'), or ask for them before"
        )


def call_state(args: Any, kwargs: Any) -> tuple[Any, ...]:
    """What besides shapes makes a call run another program: the autocast that is on, inputs that require gradients."""
    on = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    gradients = tuple(t.requires_grad for t in flatten((args, kwargs))[0])
    return (*((d, torch.get_autocast_dtype(d)) for d in on), any(gradients) and gradients)
