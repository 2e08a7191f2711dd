"""Lightning on K devices: a strategy that divides the model of a LightningModule into stages.

>>> from lpcompile.integrations.lightning import LayerParallelStrategy
>>> trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=LayerParallelStrategy(K=2))
>>> trainer.fit(module, loader)

The model is what `training_step` calls: `self(x)`, or one attribute such as `self.model(x)`. The rest of it is the
loss, which runs on the last rank, on each micro-batch, with the stages' output in place of the model's. What it logs is
logged on all ranks, as means over the micro-batches; what it keeps in attributes of its own stays on the last one. All
ranks see the same batches; checkpoints have the module's own keys, and loggers and callbacks work as they do elsewhere.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lpcompile.compile import parallelize
from lpcompile.core.stage_io import TensorSpec, io_of
from lpcompile.core.system.random_state import random_kept
from lpcompile.errors import UsageError
from lpcompile.integrations import draws
from lpcompile.integrations.logged import Logged
from lpcompile.integrations.shared_optimizer import SharedOptimizer
from lpcompile.integrations.stand_in import named
from lpcompile.integrations.training_step import call_of, loss_in, model_of, stop
from lpcompile.runtime.checkpoint.whole_model import WholeModel, output_everywhere
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.engine.batches.outputs import structured
from lpcompile.runtime.engine.batches.shares import last_weights, reduction_of
from lpcompile.runtime.engine.cutting import keep_whole
from lpcompile.runtime.engine.trainer import Trainer as Engine
from lpcompile.runtime.loop import evaluate as evaluation
from lpcompile.runtime.methods import DEFAULT

AVERAGES = ("StochasticWeightAveraging", "WeightAveraging")  # callbacks, by name: the second is of Lightning 2.6


class LayerParallelStrategy(DDPStrategy):  # type: ignore[misc]
    """Divide the model into K stages, one per device (`devices=K`), that train at once.

    method, micro, cost: as in `lpcompile.parallelize` and `program.trainer`; by default an exact pipeline. reduction:
    what the loss is a mean over (`lpcompile.runtime.engine.batches.shares`), measured by default. settings: other
    options of `program.trainer`.
    """

    def __init__(
        self,
        K: int = 2,
        *,
        method: str = DEFAULT,
        micro: int | None = None,
        cost: str = "measured",
        reduction: str | None = None,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.lp_K, self.lp_method, self.lp_micro, self.lp_cost = K, method, micro, cost
        self.lp_reduction, self.lp_settings = reduction, settings or {}
        self.engine: Engine | None = None  # while training
        self.lp_model: nn.Module  # that is divided
        self.lp_evaluated = 0
        self.lp_draws = False  # whether training_step draws random numbers before it calls the model
        self.lp_logged: Logged

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """All ranks see the same samples."""
        return {"num_replicas": 1, "rank": 0}

    def setup(self, trainer: Any) -> None:
        if self.world_size != self.lp_K:
            raise UsageError(f"LayerParallelStrategy(K={self.lp_K}) needs {self.lp_K} devices, and the Trainer has "
                             f"{self.world_size}; give it devices={self.lp_K}")  # fmt: skip
        warnings.filterwarnings("ignore", r".*sync_dist=True")  # all ranks log the same
        self.lp_logged = Logged(self.lightning_module)
        self.accelerator.setup(trainer)
        self.precision_plugin.convert_module(self.model)
        self.model_to_device()
        if self.root_device.type == "cpu":
            torch.set_num_threads(1)
        # all ranks keep the loader's own sampler, and shuffle by rank 0's random state
        trainer._accelerator_connector.use_distributed_sampler = False
        torch.set_rng_state(exchange.from_first(torch.get_rng_state()))
        if trainer.state.fn == "fit":
            self._refuse(trainer)
            self.setup_optimizers(trainer)
        self.setup_precision_plugin()

    def _refuse(self, trainer: Any) -> None:
        if not self.lightning_module.automatic_optimization:
            raise UsageError("automatic_optimization=False calls optimizers by hand, and each stage steps its own: let "
                             "Lightning optimize")  # fmt: skip
        if trainer.gradient_clip_algorithm == "value":
            raise UsageError("gradient_clip_algorithm='value' is not one of lpcompile's; use 'norm'")
        if trainer.precision not in ("32-true", "bf16-mixed"):
            raise UsageError(f"precision={trainer.precision!r} is neither '32-true' nor 'bf16-mixed'")
        for callback in trainer.callbacks:
            if any(kind.__name__ in AVERAGES for kind in type(callback).__mro__):
                raise UsageError(f"{type(callback).__name__} averages the weights of the whole model while it trains, "
                                 f"and a rank has those of its stage; leave it out")  # fmt: skip

    # ---- a step ----

    def training_step(self, batch: Any, *rest: Any) -> Any:
        if self.engine is None:
            self._make_engine(batch, rest)
        engine, trainer = self.engine, self.lightning_module.trainer
        assert engine is not None
        call, seed = self._call(batch, rest)
        self.lp_optimizer.follow()
        self.lp_logged.begin()
        shown = engine.step(
            call,
            {"batch": batch, "rest": list(rest), **({} if seed is None else {draws.SEED: seed})},
            apply=not trainer.fit_loop._should_accumulate(),
            share=1 / trainer.accumulate_grad_batches,
        )
        loss = self.lp_logged.share(shown.get("loss", 0.0), engine.plan.rank_of(engine.plan.K - 1), engine.control)
        return torch.tensor(loss, device=self.root_device, requires_grad=True)

    def _call(self, batch: Any, rest: tuple[Any, ...]) -> tuple[dict[str, Any], int | None]:
        """The arguments of the model's call, and the seed with which `training_step` draws, if it does."""
        assert self.engine is not None
        seed = draws.new_seed() if self.lp_draws else None
        with self.lp_logged.kept(), self._answers(stop):
            call, drawn = draws.arguments(
                lambda: call_of(lambda: self.lightning_module.training_step(batch, *rest)), seed, self.root_device
            )
        if not drawn:
            return call, seed
        self.lp_draws = True
        draws.keep_whole(self.engine, self.lp_method, self.lp_micro, "training_step")
        return self._call(batch, rest)

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """The stages have their gradients."""
        return closure_loss

    def _loss(self, output: Any, target: dict[str, Any]) -> Tensor:
        """The loss of a micro-batch on the last rank."""
        again = draws.drawn_again(target.get(draws.SEED), self.root_device)
        with self._answers(lambda call: output), self.lp_logged.kept(), again:
            found = self.lightning_module.training_step(target["batch"], *target["rest"])
        return loss_in(found)

    def _make_engine(self, batch: Any, rest: tuple[Any, ...]) -> None:
        module, trainer = self.lightning_module, self.lightning_module.trainer
        if len(self.optimizers) != 1:
            raise UsageError(f"configure_optimizers gives {len(self.optimizers)} optimizers; give one for the model")
        with random_kept(), self.lp_logged.untouched(), self.lp_logged.kept(), torch.no_grad():
            self.lp_model, call = model_of(module, lambda: module.training_step(batch, *rest))
            found = (self.lp_reduction, "") if self.lp_reduction else self._reduction(batch, rest)
        reduction, neither = exchange.from_first(found)
        with torch.random.fork_rng():
            program = parallelize(
                self.lp_model, self.lp_K, example_kwargs=call, cost=self.lp_cost, method=self.lp_method
            )
        whole = self.optimizers[0]
        self.lp_whole, self.lp_draws = WholeModel(self.lp_model), False
        self.lp_optimizer = SharedOptimizer(whole, self.lp_model)
        chosen: dict[str, Any] = {
            "clip": trainer.gradient_clip_val or 0.0, "clip_scope": "global", "micro": self.lp_micro,
            "reduction": reduction, "autocast": torch.bfloat16 if trainer.precision == "bf16-mixed" else None,
            **self.lp_settings,
        }  # fmt: skip
        self.engine = program.trainer(self._loss, optimizer=self.lp_optimizer.part, **chosen)
        if neither:
            keep_whole(self.engine, neither)
        self.lp_optimizer.scatter()  # what a checkpoint had
        self.lp_optimizer.release()
        whole.step = _only_closure(whole)
        whole.zero_grad = lambda *args, **options: None  # it comes after the stages' backward here

    def _reduction(self, batch: Any, rest: tuple[Any, ...]) -> tuple[str | None, str]:
        """What the loss of `training_step` is a mean over, measured on a few samples; or None, and why it is none."""
        leaves, tree = pytree.tree_flatten(batch)
        at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.dim()]
        size = len(leaves[at[0]])
        specs = [TensorSpec.of(leaves[i]).with_batch(_batch_dims(leaves[i], size)) for i in at]
        labels = next((j for j in reversed(range(len(at))) if leaves[at[j]].dtype == torch.int64), None)

        def loss(given: list[Tensor]) -> Tensor:
            now = list(leaves)
            for i, tensor in zip(at, given, strict=True):
                now[i] = tensor
            return loss_in(self.lightning_module.training_step(pytree.tree_unflatten(now, tree), *rest))

        tensors, weights = [leaves[i] for i in at], last_weights(self.lp_model)
        return reduction_of(self.lightning_module, loss, tensors, specs, labels, weights)

    @contextlib.contextmanager
    def _answers(self, answer: Callable[[dict[str, Any]], Any]) -> Iterator[None]:
        """Inside, calls of the model are answered by this."""
        model = self.lp_model
        kind = type(model)
        model.forward = lambda *args, **kwargs: answer(named(model, args, kwargs, kind))
        try:
            yield
        finally:
            del model.forward

    # ---- evaluation ----

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.engine is None:
            return super().validation_step(*args, **kwargs)
        with self._answers(self._evaluated):
            try:
                return super().validation_step(*args, **kwargs)
            except (RuntimeError, NotImplementedError) as error:
                if "meta" not in str(error):
                    raise
                raise UsageError("validation_step computes with layers that are divided among the ranks: let it call "
                                 "the same module as training_step, once or more") from error  # fmt: skip

    def _evaluated(self, call: dict[str, Any]) -> Any:
        """The serial model's output, by all ranks and on all ranks."""
        engine = self.engine
        assert engine is not None
        engine.flush()
        self.lp_evaluated += 1
        with evaluation.evaluating(engine), torch.no_grad():
            flat = evaluation.run_chain(engine, evaluation.serial(engine, False), call, self.lp_evaluated)
        last = io_of(engine.program.stages[-1], False)
        return structured(engine.program, last, output_everywhere(engine, flat), False)

    # ---- checkpoints ----

    def lightning_module_state_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = super().lightning_module_state_dict()
        if self.engine is None:
            return found
        whole = self.lp_whole.state(self.engine)
        prefix = next(n for n, m in self.lightning_module.named_modules() if m is self.lp_model)
        return found | {f"{prefix}.{name}" if prefix else name: t for name, t in whole.items()}

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        if self.engine is None:
            found: dict[str, Any] = super().optimizer_state(optimizer)
            return found
        self.lp_optimizer.gather(self.engine)
        state: dict[str, Any] = self.lp_optimizer.whole.state_dict()
        self.lp_optimizer.forget()
        return state

    def teardown(self) -> None:
        self.lp_logged.close()
        if self.engine is not None:  # after an error: weights of other ranks' stages are nowhere
            self.lightning_module.cpu = lambda: self.lightning_module
            self.engine = None
        super().teardown()

    def on_train_end(self) -> None:
        """The module has all weights again, in every process."""
        if self.engine is not None:
            self.lp_whole.restore(self.engine)
            self.engine = None
        super().on_train_end()


def _batch_dims(tensor: Tensor, size: int) -> tuple[int, ...]:
    return tuple(int(d == 0 and tensor.shape[0] == size) for d in range(tensor.dim()))


def _only_closure(whole: Any) -> Callable[..., Any]:
    """In place of the whole optimizer's step: the closure, in which each rank steps its own part."""

    def step(closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        whole._opt_called = True  # as schedulers look for
        return closure() if closure is not None else None

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    return step
