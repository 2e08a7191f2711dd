"""One stage on its rank: the AuxNets that run beside it, its optimizers, and the tensors that are alive."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lpcompile.core.method import Method
from lpcompile.core.stage_io import StageIO, TensorSpec
from lpcompile.runtime.comm.mesh import Mesh
from lpcompile.runtime.comm.quantize import Int8
from lpcompile.runtime.comm.transport import Key, Shapes, Tensors, Transport
from lpcompile.runtime.engine.batches.attributes import Attributes
from lpcompile.runtime.engine.batches.batch import MicroBatch
from lpcompile.runtime.engine.batches.shares import silent
from lpcompile.runtime.engine.settings import Settings
from lpcompile.runtime.engine.update import Updater
from lpcompile.runtime.penalty.beta import BetaState
from lpcompile.runtime.penalty.stores import Store

if TYPE_CHECKING:
    from lpcompile.runtime.comm.buffer import Buffers
    from lpcompile.runtime.penalty.heads import Head

MEAN_RATE = 0.1  # share of a step in the running means of metrics


@dataclass(frozen=True)
class Net:
    """A module and its record: `net(lams, inputs)` gives boundary tensors, then model outputs."""

    module: nn.Module
    io: StageIO
    call: Callable[..., Any] | None = None  # the module in another form: by torch.compile, or in less memory
    dtype: torch.dtype | None = None  # of the network's own autocast, if it has one

    def __call__(self, lams: Sequence[Tensor], inputs: Sequence[Tensor]) -> Tensors:
        run = self.module if self.call is None else self.call
        given = (*lams, *(inputs[i] for i in self.io.inputs))
        with torch.autocast(given[0].device.type, self.dtype) if self.dtype else contextlib.nullcontext():
            result = run(*given)
        return result if isinstance(result, tuple) else (result,)


class Worker:
    """The state of one stage; it knows nothing of the others. `rank` is the stage's number, mostly also the rank's. A
    rank with several stages (`Plan.ranks`) has a worker for each. They share `values`: what one made, others
    find there. The first one, with the rank's number, stands for the rank.
    """

    def __init__(
        self,
        rank: int,
        K: int,
        stage: Net,
        specs: dict[int, tuple[TensorSpec, ...]],
        loss: Callable[[Sequence[Any], Any], Tensor] | None,
        device: torch.device,
        settings: Settings,
        transport: Transport,
    ) -> None:
        self.rank, self.K, self.device, self.settings, self.transport = rank, K, device, settings, transport
        self.stage, self.specs, self.loss = stage, specs, loss
        self.auxnets: dict[int, Net] = {}  # by boundary, as kappanets
        self.aux_trained: dict[int, tuple[nn.Parameter, ...]] = {}  # their trainable parameters
        self.kappanets: dict[int, nn.Module] = {}
        self.head: Head | None = None  # of `dgl`: the stage's own loss
        self.buffers: Buffers | None = None
        self.onward: tuple[int, ...] = ()  # model inputs that offers carry for the stages above
        self.differentiable = {k: differentiable(found) for k, found in specs.items()}
        self.values: dict[Key, Any] = {}
        self.batches: dict[int, MicroBatch] = {}
        self.stores: dict[tuple[str, int], Store] = {}
        self.sizes: dict[tuple[int, int], list[Tensor]] = {}  # |X| by boundary and micro-batch, for a relative β
        self.betas = {k: BetaState(settings.rule(), settings.total_steps) for k in specs}
        self.int8 = Int8()  # messages, where they travel in 8 bits
        self.updater: Updater
        self.method: Method
        self.metrics: dict[str, list[tuple[Tensor, float]]] = {}
        self.trace: list[tuple[str, int, int, float, float]] | None = None
        self.clock = time.perf_counter  # for the trace
        self.weigh = False  # whether this step measures the memory of graphs
        self.graph_bytes: dict[int, int] = {}  # of live graphs, by micro-batch
        self.peak_graph_bytes = 0
        self.means: dict[str, float] = {}  # running means of losses and violations, by metric
        self.first_losses: list[float] = []  # of the first steps, where this rank has the loss
        self.collapsed: dict[int, str] = {}  # boundaries whose values no longer vary, and how that was seen
        self.varied: set[tuple[int, str, int]] = set()  # boundary tensors that once varied over samples
        self.attributes = Attributes(stage.module)
        self.holders_of: dict[int, list[nn.Module]] = {}
        self.put_off: set[int] = set()  # weights, by id, whose gradients a split backward computes in its second part
        self.waited = 0.0  # seconds of this step
        self.sent = 0  # bytes of this step
        self.now = ""  # the instruction that is running
        self.progress = 0
        self.step = 0
        self.apply = True  # whether optimizers step at the end of this step
        self.look = False  # whether this step's boundaries are checked for collapse
        self.norms: list[Tensor] | None = None
        self.ahead = 0  # largest number of updates that the schedule predicts weights for
        self.expected: dict[int, Tensors] = {}  # predicted weights by number of updates
        self.shares_stage: set[int] = set()  # boundaries whose AuxNet runs on the stage's own weights
        self.trained: list[nn.Parameter] = []  # the stage's, also those that another rank steps
        self.tied: dict[str, nn.Parameter] = {}  # parameters that other ranks share
        self.tied_gradients: dict[str, Tensor] = {}
        self.owners: dict[str, tuple[int, ...]] = {}
        self.mesh: Mesh | None = None  # where there are replicas
        self.here: tuple[int, ...] = (rank,)  # the stages in this process: there a tied parameter is one tensor
        self.random = _random_state(rank) if K > 1 else None

    @property
    def last(self) -> bool:
        return self.rank == self.K - 1

    def steps_tied(self, name: str) -> bool:
        """Whether this stage's optimizer steps the tied parameter: each process its copy, and only once."""
        return self.rank == self.owners_here(name)[0]

    def owners_here(self, name: str) -> tuple[int, ...]:
        """The stages of this process that have the tied parameter."""
        return tuple(s for s in self.owners[name] if s in self.here)

    def learning_rate(self, given: float | None) -> float:
        if given is not None:
            return given
        found = list(self.updater.optimizers().values())
        return float(found[0].param_groups[0]["lr"]) if found else 0.0

    def beta(self, k: int, slot: int) -> float | Tensor:
        return self.betas[k].at(self.batches[slot].step)

    def weight(self, slot: int) -> float:
        """A micro-batch's share in the gradients of an optimizer step, times its loss scale."""
        return self.batches[slot].weight / self.settings.accumulate * self.batches[slot].scale

    def rescale(self, slot: int) -> float:
        """Factor from the micro-batch's loss scale to the current one: a power of two."""
        return self.updater.scale / self.batches[slot].scale

    def shapes(self, key: Key) -> Shapes:
        """Shapes and dtypes of a message, for its receive buffers."""
        size = self.batches[key[2]].size
        if self.settings.transfer == torch.int8:
            return self.int8.shapes((s.at(size), s.dtype) for s in self.carried(key))
        return tuple((s.at(size), self.on_wire(s.dtype)) for s in self.carried(key))

    def carried(self, key: Key) -> tuple[TensorSpec, ...]:
        """Specs of a message: all tensors of the boundary, or those that have gradients."""
        kind, k, _ = key
        specs = self.specs[k]
        return tuple(specs[i] for i in self.differentiable[k]) if kind in ("p", "kappa") else specs

    def on_wire(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype of such a tensor on the wire."""
        return self.settings.transfer or dtype if dtype == torch.float32 else dtype

    def message(self, key: Key, value: Tensors) -> Tensors:
        if self.settings.transfer == torch.int8:
            return self.int8.pack(key, [t.detach() for t in value])
        return tuple(t.detach().to(self.on_wire(t.dtype)) for t in value)

    def unpacked(self, key: Key, found: Tensors) -> Tensors:
        """A message in the boundary's own dtypes."""
        if self.settings.transfer == torch.int8:
            return self.int8.unpack(found, [s.dtype for s in self.carried(key)])
        return tuple(t.to(s.dtype) for t, s in zip(found, self.carried(key), strict=True))

    def pick(self, k: int, tensors: Sequence[Tensor]) -> Tensors:
        """The tensors of boundary k that have gradients."""
        return tuple(tensors[i] for i in self.differentiable[k])

    def leaves(self, k: int, tensors: Sequence[Tensor], gradients: bool = True) -> Tensors:
        """The boundary's tensors as inputs of a stage: detached, ready to take gradients."""
        wanted = self.differentiable[k] if gradients else ()
        return tuple(t.detach().requires_grad_() if i in wanted else t.detach() for i, t in enumerate(tensors))

    def cast(self, k: int, tensors: Sequence[Tensor]) -> Tensors:
        """Back to the plan's dtypes, whatever autocast chose."""
        return tuple(t if t.dtype == s.dtype else t.to(s.dtype) for t, s in zip(tensors, self.specs[k], strict=True))

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.settings.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.settings.autocast)

    def run_stage(self, lams: Sequence[Tensor], slot: int) -> tuple[Tensors, Tensor | None]:
        """Boundary tensors of the stage's forward; on the last rank the weighted loss."""
        batch = self.batches[slot]

        def compute(*leaves: Tensor) -> Any:
            with self.autocast():
                found = self.stage(leaves, batch.inputs)
                if self.loss is None:
                    return self.cast(self.rank + 1, found[: len(self.specs[self.rank + 1])])
                return self.loss(found, batch.target) if batch.weight else silent(found)

        if self.settings.recomputes(self.rank):
            result = checkpoint(compute, *lams, use_reentrant=False, context_fn=self._checkpoint_contexts)
        else:
            result = compute(*lams)
        if self.loss is None:
            return result, None
        return (), result

    def _checkpoint_contexts(
        self,
    ) -> tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]:
        """Around the forward, and around its recomputation."""
        return contextlib.nullcontext(), self.statistics_kept(self.stage.module)

    def run_aux(self, k: int, slot: int) -> Tensors:
        batch, net = self.batches[slot], self.auxnets[k]
        lams = self.values["lam", k - 1, slot] if net.io.lams else ()
        with self.autocast():
            return self.cast(k, net(lams, batch.inputs))

    @contextlib.contextmanager
    def statistics_kept(self, module: nn.Module) -> Iterator[None]:
        """Inside, forwards update copies of the running statistics, and of all buffers of layers that a user wrote: a
        batch's second forward must not count again."""
        holders = self.holders_of.get(id(module))
        if holders is None:
            holders = self.holders_of[id(module)] = [m for m in module.modules() if m._buffers]
        kept = [dict(m._buffers) for m in holders]
        for m in holders:
            for name, buffer in m._buffers.items():
                m._buffers[name] = None if buffer is None else buffer.clone()
        try:
            yield
        finally:
            for m, buffers in zip(holders, kept, strict=True):
                m._buffers.update(buffers)

    def begin_step(self, method: Method, step: int, apply: bool, oldest: int) -> None:
        """Be ready for a step; micro-batches before `oldest` are over."""
        self.method, self.step, self.apply, self.norms = method, step, apply, None
        self.look = (step + 1) % self.settings.check_every == 0
        for old in [n for n in self.batches if n < oldest]:
            del self.batches[old]

    def come_to_rest(self) -> None:
        """Nothing is in flight: drop values of micro-batches and the step's metrics."""
        self.values.clear()
        self.expected.clear()
        self.batches.clear()
        self.metrics.clear()
        self.attributes.kept.clear()
        self.int8.rest()
        self.waited, self.sent = 0.0, 0

    def note(self, name: str, value: Tensor, weight: float) -> None:
        self.metrics.setdefault(name, []).append((value, weight))

    def take_metrics(self) -> dict[str, float]:
        """Means over the step's micro-batches, as numbers."""
        found = {}
        for name, values in self.metrics.items():
            total = sum(w for _, w in values)
            found[name] = sum(float(v) * w for v, w in values) / total
        self.metrics.clear()
        for name, value in found.items():
            self.means[name] = self.means.get(name, value) + MEAN_RATE * (value - self.means.get(name, value))
        return found

    @contextlib.contextmanager
    def own_random(self) -> Iterator[None]:
        """Draw from this rank's own random stream; the user's (from which loaders shuffle) stays as it was."""
        if self.random is None:
            yield
            return
        outside = get_random(self.device)
        set_random(self.device, self.random)
        try:
            yield
        finally:
            self.random = get_random(self.device)
            set_random(self.device, outside)


def differentiable(specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    """Tensors of a boundary that have gradients; all floats above frozen layers, where λ must still learn X."""
    found = tuple(i for i, s in enumerate(specs) if s.is_float and s.requires_grad)
    return found or tuple(i for i, s in enumerate(specs) if s.is_float)


def _random_state(rank: int) -> list[Tensor]:
    """The start of a rank's random stream: the same whether ranks share a process or not."""
    seed = (torch.initial_seed() + 1 + rank) % 2**63
    states = [torch.Generator().manual_seed(seed).get_state()]
    if torch.cuda.is_available():
        states.append(torch.Generator("cuda").manual_seed(seed).get_state())
    return states


def get_random(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def set_random(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1], device)
