"""torch.compile of stages and AuxNets, before the first step that needs it rather than inside it.

Compiling deep stages takes minutes, and a rank that others wait for so long would be taken for dead. So every rank runs
its networks once, forward and backward, on micro-batches of the coming sizes, and then waits for the others without a
short timeout. Weights, buffers, gradients and random states are restored.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from lpcompile.errors import UsageError
from lpcompile.runtime.comm.transport import dense
from lpcompile.runtime.engine.batches.batch import MicroBatch
from lpcompile.runtime.engine.worker import Net, Worker
from lpcompile.runtime.launch import board
from lpcompile.runtime.launch.launch import PATIENCE

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

log = logging.getLogger("lpcompile")


def compiled_net(net: Net) -> Net:
    """The same network, run by torch.compile with static shapes."""
    return replace(net, call=torch.compile(net.module, dynamic=False))


def ensure_compiled(engine: Engine, parts: Sequence[MicroBatch]) -> None:
    """Compile for these micro-batches, if `compile=True` asks for it and their sizes are new."""
    needed = (engine.method.name, *sorted({str(part.size) for part in parts}))
    if engine.settings.compile and needed not in engine.code:
        engine.code.add(needed)
        compile_now(engine, parts)


def compile_now(engine: Engine, parts: Sequence[MicroBatch]) -> None:
    """All ranks call it at the same step, with micro-batches whose sizes or method are new."""
    begin = time.perf_counter()
    patient: Any = None
    with board.away(engine.steps, "compiling", board.RESTS):
        if engine.distributed:  # now, while all ranks are here
            patient = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=PATIENCE))
        for w in engine.workers:
            for batch in {part.size: part for part in parts}.values():
                with w.own_random(), torch.random.fork_rng(devices=[]):
                    last = engine.channels_last
                    _run(w, w.stage, batch, last, [True, *([False] if engine.method.reruns_stage else [])])
                    for net in w.auxnets.values():
                        _run(w, net, batch, last, [True, False])
        if patient is not None:
            dist.barrier(group=patient)
            dist.destroy_process_group(patient)
    if engine.main:
        log.info("compiled in %.0f s", time.perf_counter() - begin)


def _run(w: Worker, net: Net, batch: MicroBatch, channels_last: bool, modes: Sequence[bool]) -> None:
    kept = {id(b): b.clone() for b in net.module.buffers()}
    gradients_before = [(p, p.grad) for p in net.module.parameters()]
    rooms = [torch.zeros(s.at(batch.size), dtype=s.dtype, device=w.device) for s in net.io.lams]
    lams = [dense(t, channels_last)[0] for t in rooms]
    try:
        for parameter, _ in gradients_before:
            parameter.grad = None
        for gradients in modes:
            given = [_leaf(t, gradients and net is w.stage) for t in lams]
            with torch.set_grad_enabled(gradients), w.autocast():
                found = [t for t in net(given, batch.inputs) if isinstance(t, Tensor) and t.requires_grad]
            if found:
                torch.autograd.backward(found, [torch.zeros_like(t) for t in found])
    except Exception as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            first = str(error).strip().splitlines()[0]
            raise UsageError(
                f"compile=True: torch.compile cannot make code for stage {w.rank} ({first}); it needs a C++ compiler "
                f"such as g++ on the CPU; or leave it out"
            ) from error
        raise
    finally:
        for parameter, before in gradients_before:
            parameter.grad = before
        with torch.no_grad():
            for buffer in net.module.buffers():
                buffer.copy_(kept[id(buffer)])


def _leaf(tensor: Tensor, gradients: bool) -> Tensor:
    return tensor.detach().requires_grad_() if gradients and tensor.is_floating_point() else tensor
