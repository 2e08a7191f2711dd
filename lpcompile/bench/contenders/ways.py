"""The contenders of a bench: plain training, data parallelism, torch's own pipelines, and every method of ours.

A contender is one rank of one way to train. All are measured by the same loop (`lpcompile.bench.rank`), which
calls them for one step at a time; they add the parts of a step to `spent`, in CPU seconds of this thread.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lpcompile.bench.contenders.contender import Contender, accuracy_of, compiled_module
from lpcompile.bench.contenders.torch_pipeline import Pipeline
from lpcompile.bench.contenders.work import Work, WorkSpec, call, loss, slice_of, work
from lpcompile.compile import parallelize
from lpcompile.core.method import BatchFacts
from lpcompile.core.micro_batches import checked_micro
from lpcompile.core.plan import Plan
from lpcompile.core.trace import kind_of
from lpcompile.errors import UsageError
from lpcompile.passes.graph.untouched import untouched
from lpcompile.program import Program
from lpcompile.runtime.engine.settings import TRANSFER_NAMES
from lpcompile.runtime.loop.evaluate import RECALIBRATION_BATCHES
from lpcompile.runtime.methods import CHOSEN, METHODS
from lpcompile.training.measures import bytes_between_steps, bytes_of

PLAIN, THREADS, LIMIT, DDP, FSDP = "plain", "threads", "limit", "ddp", "fsdp"
TORCH = {
    f"torch-{m.name}": m.name for m in METHODS.values() if m.torch_schedule and m.chunks == 1
}  # torch's own engine, our cut
PEERS = (PLAIN, THREADS, LIMIT, DDP, FSDP, *TORCH)
CONTENDERS = (*PEERS, *METHODS)
OVER_LINKS = (
    PLAIN,
    DDP,
    f"{DDP}+bf16",
    FSDP,
    "torch-1f1b",
    "torch-zb",
    "1f1b",
    CHOSEN,
    "stream",
    "stream+slack",
    "stream+int8",
    "stream+int8+slack",
    "penalty",
)
TRANSFERS = tuple(TRANSFER_NAMES)  # NAME+bf16: a contender whose messages travel so, whatever the others' do
SLACK = "slack"  # NAME+slack: one more micro-batch in flight, so that messages travel while both ranks compute
PART_OF_KIND = {"forward": "forward", "backward": "backward", "auxiliary": "aux", "step": "optimizer",
                "message": "transfer", "wait": "python"}  # fmt: skip


class Plain(Contender):
    """A plain training loop; with a wrapped model and a part of the batch, data parallelism."""

    buckets = 0  # bytes that DDP keeps for gradients

    def __init__(
        self, given: Work, compiled: bool, wrap: Callable[[nn.Module], nn.Module] | None = None, part: Any = None
    ) -> None:
        super().__init__(given)
        self.model = wrap(given.model) if wrap is not None else given.model
        self.optimizer = given.optimizer(list(self.model.parameters()))
        self.part = part
        self.called = compiled_module(self.model) if compiled else self.model

    def step(self) -> None:
        x, y, _ = next(self.batches)
        if self.part is not None:
            x, y = slice_of((x, y), *self.part)
        with self.clocked("forward"):
            value = loss(call(self.called, x), y)
        with self.clocked("backward"):
            torch.autograd.backward(value)
        with self.clocked("optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def accuracy(self) -> float:
        return accuracy_of(self.model, self.work.test)

    def held(self) -> int:
        return self.buckets + bytes_of(self.model, self.optimizer)


class Ours(Contender):
    """One rank of a method of ours, by the public trainer."""

    def __init__(
        self, given: Work, program: Program, method: str, compiled: bool, transfer: str | None, slack: int
    ) -> None:
        super().__init__(given)
        options: dict[str, Any] = {"compile": compiled, "transfer": transfer, "slack": slack}
        if given.train is None:  # where the model learns nothing, AuxNets have nothing to follow: no exact steps
            options |= {"warmup": 0, "recouple": 0.0}
        self.trainer = program.trainer(loss, optimizer=given.optimizer, method=method, **options)
        self.micro = self.trainer.micro
        worker = self.trainer.workers[0]
        worker.trace, worker.clock = [], time.thread_time

    def use(self, micro: int) -> None:
        self.trainer.switch(self.trainer.target.name, micro=micro)
        self.micro = self.trainer.micro

    def step(self) -> None:
        x, y, index = next(self.batches)
        self.sent = self.trainer.step(x, y, index)["bytes"]
        trace = self.trainer.workers[0].trace
        assert trace is not None
        for name, _, _, begin, end in trace:
            part = PART_OF_KIND[kind_of(name)]
            self.spent[part] = self.spent.get(part, 0.0) + end - begin
        trace.clear()

    def finish(self) -> None:
        self.trainer.flush()

    def accuracy(self) -> float:
        """With statistics of BatchNorm taken on X where training gathers them on λ, as after training."""
        again = islice(self.work.train, RECALIBRATION_BATCHES) if self.trainer.method.has_aux else None
        found = self.trainer.evaluate(self.work.test, recalibrate=again)
        return found.get("recalibrated accuracy", found["accuracy"])

    def held(self) -> int:
        return bytes_between_steps(self.trainer.workers)


def base(name: str) -> str:
    """The contender without its options: "ddp" of "ddp+bf16"."""
    return name.partition("+")[0]


def transfer_of(name: str, given: str | None) -> str | None:
    """The form of a contender's messages: its own, or the one asked for all."""
    own = next((one for one in name.split("+")[1:] if one in TRANSFERS), given)
    return "bf16" if base(name) == DDP and own else own  # the hook that torch has


def slack_of(name: str) -> int:
    """How many more micro-batches a contender has in flight than it must."""
    return int(SLACK in name.split("+")[1:])


def planned_as(name: str) -> str:
    """The method that a contender's stages are planned for; another contender's own name."""
    return TORCH.get(base(name), base(name))


def exists(name: str) -> bool:
    found, own = base(name), name.split("+")[1:]
    if not own:
        return name in CONTENDERS
    if found == DDP:
        return own == ["bf16"]
    known = (*TRANSFERS, *([SLACK] if found in METHODS and METHODS[found].slackens else []))
    forms = [one for one in own if one in TRANSFERS]
    return found in METHODS and all(one in known for one in own) and len(forms) < 2 and len(set(own)) == len(own)


def make(name: str, spec: WorkSpec, plan: Plan | None) -> Contender:
    """This rank's part of a contender. `plan`: for contenders that run on stages."""
    given = work(spec)
    spec, slack = replace(spec, transfer=transfer_of(name, spec.transfer)), slack_of(name)
    name = base(name)
    if name in (PLAIN, LIMIT):
        return Plain(given, spec.compile)
    if name == THREADS:
        torch.set_num_threads(spec.K)
        if spec.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, spec.cores[: spec.K])
        return Plain(given, spec.compile)
    rank, world = dist.get_rank(), dist.get_world_size()
    if name == DDP:
        found = Plain(given, spec.compile, lambda _: _ddp(given, spec.transfer), (rank, world))
        found.buckets = _nbytes(given.model)
        found.sent = round(2 * (world - 1) / world * found.buckets / (2 if spec.transfer else 1))  # a ring
        return found
    if name == FSDP:
        size = _nbytes(given.model)
        found = Plain(given, spec.compile, _fsdp, (rank, world))
        for group in found.optimizer.param_groups:
            group["fused"] = False  # torch has no fused SGD for sharded weights
        found.sent = round(3 * (world - 1) / world * size)  # gathered for forward and backward, scattered once
        return found
    assert plan is not None
    program = parallelize(given.model, plan.world, plan=plan, example_inputs=given.batches[0][0], gate=False)
    if name in TORCH:
        return Pipeline(given, program, TORCH[name], spec)
    return Ours(given, program, name, spec.compile, spec.transfer, slack)


def _ddp(given: Work, transfer: str | None) -> nn.Module:
    """DDP searches for unused parameters in every step, which takes time: only for models that have some."""
    x, y, _ = given.batches[0]
    part = slice_of((x, y), dist.get_rank(), dist.get_world_size())
    with untouched(given.model):
        torch.autograd.backward(loss(call(given.model, part[0]), part[1]))
        unused = any(p.grad is None for p in given.model.parameters() if p.requires_grad)
    found = nn.parallel.DistributedDataParallel(
        given.model, gradient_as_bucket_view=True, find_unused_parameters=unused
    )
    if transfer:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        found.register_comm_hook(None, bf16_compress_hook)
    return found


def _fsdp(model: nn.Module) -> nn.Module:
    """Shard each block by itself, as the documentation advises: children of lists and sequences that have parts."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = next(model.parameters()).device.type
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    lists = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    for block in {id(b): b for m in lists for b in m.children() if any(True for _ in b.children())}.values():
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)  # type: ignore[return-value]


def _nbytes(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.parameters() if p.requires_grad)


def micro_choices(name: str, plan: Plan) -> list[int]:
    """Numbers of micro-batches to try for a contender whose results do not depend on them; none for others."""
    method = METHODS.get(planned_as(name))
    if method is None or not method.pipeline or not plan.batch_free or not plan.batch:
        return []
    found = []
    for micro in (plan.world * n for n in (1, 2, 4, 8)):
        with contextlib.suppress(UsageError):
            found.append(checked_micro(method, plan.world, plan.batch, micro))
    if method.own_order is not None:  # also 2K-1, the fewest that leave no bubble; such parts need not be equal
        own = method.micro_choices(BatchFacts(plan.world, plan.batch))
        found = sorted({*found, *(micro for micro in own if micro >= plan.world)})
    # a BatchNorm may refuse single samples, which are never the fastest
    return [micro for micro in found if plan.batch // micro > 1] or found[:1]
