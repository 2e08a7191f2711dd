"""torch's own pipelines in a bench: `torch.distributed.pipelining` on stages that our planner cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lpcompile.bench.contenders.contender import Contender, accuracy_of, compiled_module
from lpcompile.bench.contenders.work import Work, WorkSpec, loss, work
from lpcompile.core.memory_format import channels_last, lies_channels_last
from lpcompile.core.micro_batches import checked_micro
from lpcompile.program import Program
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.methods import get_method
from lpcompile.training.measures import bytes_of


class Pipeline(Contender):
    """One rank of `torch.distributed.pipelining`, on a stage that our planner cut."""

    def __init__(self, given: Work, program: Program, schedule: str, spec: WorkSpec) -> None:
        super().__init__(given)
        self.spec, compiled = spec, spec.compile
        rank = dist.get_rank()
        self.program, self.schedule, self.rank = program.train(), schedule, rank
        stage = program.stages[rank]
        last = lies_channels_last(program.module)
        self.module: nn.Module = compiled_module(stage) if compiled else stage
        self.module = Contiguous(self.module, last, compiled)
        self.optimizer = given.optimizer(list(stage.parameters()))
        plan = program.plan
        self.sent = sum(b.nbytes for b in plan.boundaries if rank in (b.index - 1, b.index))
        own = {id(p) for p in stage.parameters()}
        for p in program.module.parameters():  # the other ranks have theirs
            if id(p) not in own:
                p.data = torch.empty(0)
        self.use(checked_micro(get_method(schedule), plan.K, plan.batch, free=plan.batch_free))

    def use(self, micro: int) -> None:
        from torch.distributed.pipelining import PipelineStage, schedules

        K, device = self.program.plan.K, next(self.program.stages[self.rank].parameters()).device
        stage = PipelineStage(self.module, self.rank, K, device)
        for name, part in (("forward_one_chunk", "forward"), ("backward_one_chunk", "backward"),
                           ("backward_weight_one_chunk", "backward")):  # fmt: skip
            setattr(stage, name, self._timed(getattr(stage, name), part))
        made = getattr(schedules, get_method(self.schedule).torch_schedule)
        several = issubclass(made, schedules.PipelineScheduleMulti)  # takes a list of stages
        self.engine = made([stage] if several else stage, micro, loss_fn=loss)
        self.micro = micro

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self.clocked(part):
                return function(*args, **kwargs)

        return run

    def step(self) -> None:
        x, y, _ = next(self.batches)
        io, plan = self.program.stages[self.rank]._lp_io[True], self.program.plan
        inputs = self.program.flat_inputs(x)
        own = [inputs[i] for i in io.inputs]
        first, later = (own, {}) if self.rank == 0 else ([], dict(zip(plan.stages[self.rank].inputs, own, strict=True)))
        self.engine.step(*first, target=y if self.rank == plan.K - 1 else None, return_outputs=False, **later)
        with self.clocked("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def accuracy(self) -> float:
        """Rank 0 puts the stages together again."""
        own = dict(self.program.stages[self.rank].state_dict())
        parts = exchange.gathered(own)
        found = 0.0
        if self.rank == 0:
            whole = work(self.spec).model
            whole.load_state_dict({name: tensor for part in parts for name, tensor in part.items()})
            found = accuracy_of(whole, self.work.test)
        return float(exchange.from_first(found))

    def held(self) -> int:
        return bytes_of(self.program.stages[self.rank], self.optimizer)


class Contiguous(nn.Module):
    """A stage with contiguous boundaries: torch refuses to send other tensors. Stages
    that end in a transposition, are channels last or were compiled by torch.compile return others."""

    def __init__(self, stage: nn.Module, last: bool, compiled: bool) -> None:
        super().__init__()
        self.stage, self.last, self.compiled = stage, last, compiled

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        if self.last or self.compiled:
            args = tuple(Arrived.apply(t, self.last) for t in args)
        else:
            for t in (t for t in args if t.requires_grad):
                t.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
        found = self.stage(*args, **kwargs)
        return tuple(t.contiguous() for t in found) if isinstance(found, tuple) else found.contiguous()


class Arrived(torch.autograd.Function):
    """The boundary in the stage's memory format; its gradient is made contiguous."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, last: bool) -> Tensor:
        return channels_last(tensor) if last else tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].contiguous(), None
