"""`transformers.Trainer` on K devices: the same arguments, data collator, metrics, callbacks and checkpoints.

>>> from lpcompile.integrations.transformers import Trainer
>>> trainer = Trainer(model, TrainingArguments("out", ...), K=2, train_dataset=data, compute_metrics=f1)
>>> trainer.train(resume_from_checkpoint=True)

The loop is transformers' own, on every rank and over the same batches; in place of `training_step` the ranks train
their stages on the batch. The loss is `compute_loss`, also a user's own: it runs on the last rank with the stages'
output in the place of the model's (`lpcompile.integrations.stand_in`). Checkpoints are transformers' own, so that a run
may go on with another K, or without lpcompile.

By itself `train()` starts K processes of this machine; under torchrun each process is a rank.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import transformers
from torch import Tensor

from lpcompile.compile import parallelize
from lpcompile.core.stage_io import io_of
from lpcompile.core.system.random_state import random_kept
from lpcompile.integrations import alone, draws, padding
from lpcompile.integrations.shared_optimizer import SharedOptimizer
from lpcompile.integrations.stand_in import StandIn, arguments_of, called_once
from lpcompile.integrations.transformers_arguments import first_samples, recomputes, refuse, spec_of
from lpcompile.integrations.transformers_rank import load_random, save_random, train_on_ranks
from lpcompile.runtime.checkpoint.whole_model import WholeModel, output_everywhere
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.comm.handshake import in_torchrun
from lpcompile.runtime.engine.batches.outputs import structured
from lpcompile.runtime.engine.batches.shares import NEAR, last_weights, reduction_of
from lpcompile.runtime.engine.cutting import keep_whole
from lpcompile.runtime.engine.trainer import Trainer as Engine
from lpcompile.runtime.launch import board
from lpcompile.runtime.loop import evaluate as evaluation
from lpcompile.runtime.methods import DEFAULT

log = logging.getLogger("lpcompile")
ITEMS = "num_items_in_batch"


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """`transformers.Trainer` whose model is divided into K stages that train at once.

    K: devices. method, micro, cost: as in `lpcompile.parallelize` and `program.trainer`; by default an exact pipeline.
    pad_to: the length of texts, by default that of the longest text of the data sets. reduction: what the loss is a
    mean over (`lpcompile.runtime.engine.batches.shares`), measured by default. settings: other options of
    `program.trainer`.
    """

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        *rest: Any,
        K: int = 2,
        method: str = DEFAULT,
        micro: int | None = None,
        cost: str = "measured",
        pad_to: int | None = None,
        reduction: str | None = None,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        args = transformers.TrainingArguments("tmp_trainer") if args is None else args
        refuse(args)
        self.lp_given = {"rest": rest, "options": options}
        self.lp_options: dict[str, Any] = {"K": K, "method": method, "micro": micro, "cost": cost, "pad_to": pad_to,
                           "reduction": reduction, "settings": settings}  # fmt: skip
        self.lp_recompute = recomputes(args)
        self.lp_ranks = K > 1 and in_torchrun()
        if self.lp_ranks:
            alone.leave_alone(args, alone.join(K, args.device.type))
        self.engine: Engine | None = None  # while training
        self.lp_draws = False  # whether compute_loss draws random numbers before it calls the model
        super().__init__(model, args, *rest, **options)
        self.lp_first, self.lp_callbacks = dict(vars(self)), list(self.callback_handler.callbacks)
        if self.lp_ranks:
            self.accelerator.device_placement = False  # weights of other ranks' stages are nowhere
            self.accelerator.scaler = None  # the engine scales losses itself

    def train(self, resume_from_checkpoint: Any = None, **options: Any) -> Any:
        """As `transformers.Trainer.train`; in the end the model has all weights, in every process."""
        if self.lp_ranks or self.lp_options["K"] == 1:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **options)
        return train_on_ranks(self, resume_from_checkpoint, options)

    # ---- set up ----

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        if self.lp_ranks:
            self._make_engine(train_dataloader)
        return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)

    def _make_engine(self, loader: Any) -> None:
        options, model = self.lp_options, self.model
        given: Any = vars(self)["optimizer"]
        self.optimizer: Any = getattr(given, "optimizer", given)  # of an earlier run, wrapped
        whole = self.create_optimizer()
        self.lp_lengths = padding.longest(
            [self.train_dataset, *_list(self.eval_dataset)],
            getattr(self.data_collator, "pad_to_multiple_of", None),
            options["pad_to"],
        )
        with torch.random.fork_rng(), random_kept():
            samples = first_samples(loader, self._train_batch_size)
            batch = self._prepare_inputs(self._padded(loader.collate_fn(samples)))
            items = self._get_num_items_in_batch([batch], self.args.device)
            model.train()
            with torch.no_grad():
                call = called_once(lambda m: self.compute_loss(m, dict(batch), num_items_in_batch=items), model)
            if self.lp_lengths:
                self._compare_padded(loader.collate_fn(padding.shortest(samples)))
            found = (options["reduction"], "") if options["reduction"] else self._reduction(batch, items)
        reduction, neither = exchange.from_first(found)
        with board.away(0, "compiling the model"):
            program = parallelize(
                model, options["K"], example_kwargs=call, cost=options["cost"], method=options["method"]
            )
        self.lp_whole, self.lp_optimizer, self.lp_draws = WholeModel(model), SharedOptimizer(whole, model), False
        clip = self.args.max_grad_norm or 0.0
        chosen: dict[str, Any] = {
            "clip": clip, "clip_scope": "global", "micro": options["micro"], "reduction": reduction,
            "autocast": torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else None,
            "checkpoint": self.lp_recompute, **(options["settings"] or {}),
        }  # fmt: skip
        self.engine = program.trainer(self._loss, optimizer=self.lp_optimizer.part, **chosen)
        if neither:
            keep_whole(self.engine, neither)
        self.lp_optimizer.release()
        whole.step = _steps_elsewhere
        self.lp_evaluated = 0
        log.info("%s in %d stages by %s, %d micro-batches a step", type(model).__name__, options["K"],
                 self.engine.method.name, self.engine.micro)  # fmt: skip

    def _compare_padded(self, short: Any) -> None:
        """Say so where the model or its loss looks at positions that are added."""
        short = self._prepare_inputs(short)
        long, model = self._padded(short), self.model.eval()
        items = self._get_num_items_in_batch([short], self.args.device)
        losses = []
        for batch in (short, long):
            with torch.no_grad(), draws.drawn_again(0, self.args.device):
                losses.append(float(self.compute_loss(model, dict(batch), num_items_in_batch=items)))
        (plain, found), _ = losses, model.train()
        if abs(found - plain) > NEAR * abs(plain) and self.args.process_index == 0:
            log.warning("texts are padded to %d positions, which changes a loss from %.4g to %.4g: the model or its "
                        "loss looks at padding; pad the texts of the data set to one length, also for plain training",
                        self.lp_lengths[padding.MAIN], plain, found)  # fmt: skip

    def _reduction(self, batch: dict[str, Any], items: Any) -> tuple[str | None, str]:
        """What `compute_loss` is a mean over, measured on a few samples; or None, and why it is none."""
        names = [name for name, value in batch.items() if isinstance(value, Tensor)]
        size = len(batch[names[0]])
        tensors = [batch[name] for name in names]
        specs = [spec_of(t, size) for t in tensors]
        labels = next((i for i, n in enumerate(names) if n in self.label_names and not tensors[i].is_floating_point()),
                      None)  # fmt: skip
        rest = {name: value for name, value in batch.items() if name not in names}

        def loss(given: list[Tensor]) -> Any:
            inputs = {**rest, **dict(zip(names, given, strict=True))}
            return self.compute_loss(self.model, inputs, num_items_in_batch=items)

        return reduction_of(self.model, loss, tensors, specs, labels, last_weights(self.model))

    def _padded(self, inputs: Any) -> dict[str, Any]:
        token = getattr(self.processing_class, "pad_token_id", None)
        token = getattr(getattr(self.model, "config", None), "pad_token_id", None) if token is None else token
        return padding.padded(inputs, self.lp_lengths, token if isinstance(token, int) else 0)

    # ---- a step ----

    def _loss(self, output: Any, batch: dict[str, Any]) -> Tensor:
        """The loss of a micro-batch on the last rank: `compute_loss` with the stages' output as the model's."""
        inputs = dict(batch)
        items, seed = inputs.pop(ITEMS, None), inputs.pop(draws.SEED, None)
        with draws.drawn_again(seed, self.args.device):
            loss: Tensor = self.compute_loss(StandIn(self.model, lambda call: output), inputs, num_items_in_batch=items)
        return loss

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        if self.engine is None:
            plain: Tensor = super().training_step(model, inputs, num_items_in_batch)
            return plain
        self.model.train()
        inputs = self._prepare_inputs(self._padded(inputs))
        call, seed = self._call(inputs, num_items_in_batch)
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            scaled = (self.model_accepts_loss_kwargs and num_items_in_batch is not None) or bool(self.compute_loss_func)
        share = 1.0 if scaled else 1 / self.current_gradient_accumulation_steps
        self.lp_optimizer.follow()
        beside = {ITEMS: num_items_in_batch, draws.SEED: seed}
        target = {**inputs, **{name: value for name, value in beside.items() if value is not None}}
        apply = bool(self.accelerator.gradient_state.sync_gradients)
        shown = self.engine.step(call, target, apply=apply, share=share)
        return torch.tensor(shown.get("loss", 0.0) * share, device=self.args.device)

    def _call(self, inputs: dict[str, Any], items: Any) -> tuple[dict[str, Any], int | None]:
        """The arguments of the model's call, and the seed with which `compute_loss` draws, if it does."""
        assert self.engine is not None
        seed = draws.new_seed() if self.lp_draws else None
        loss = lambda m: self.compute_loss(m, dict(inputs), num_items_in_batch=items)  # noqa: E731
        call, drawn = draws.arguments(lambda: arguments_of(loss, self.model), seed, self.args.device)
        if not drawn:
            return call, seed
        self.lp_draws = True
        draws.keep_whole(self.engine, self.lp_options["method"], self.lp_options["micro"], "compute_loss")
        return self._call(inputs, items)

    def _clip_grad_norm(self, model: Any) -> Any:
        """The norm of all ranks' gradients; they are clipped where they are applied."""
        if self.engine is None:
            return super()._clip_grad_norm(model)
        norms = self.engine.workers[0].norms
        return torch.linalg.vector_norm(torch.stack(list(norms))) if norms else None

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        return super()._get_grad_norm(model, grad_norm) if self.engine is None else grad_norm

    def _maybe_log_save_evaluate(self, tr_loss: Tensor, *args: Any, **options: Any) -> None:
        """The last rank knows the losses: the others hear their sum when it is logged."""
        if self.engine is not None and self.control.should_log:
            self._share_loss(tr_loss)
        super()._maybe_log_save_evaluate(tr_loss, *args, **options)

    def _share_loss(self, tr_loss: Tensor) -> None:
        assert self.engine is not None
        plan, control = self.engine.plan, self.engine.control
        tr_loss.fill_(exchange.from_rank(float(tr_loss), plan.rank_of(plan.K - 1), control))

    def _finalize_training(self, *args: Any, **options: Any) -> Any:
        if self.engine is not None:
            self._share_loss(self._tr_loss)
            self.lp_whole.restore(self.engine)
            self.engine = None
        return super()._finalize_training(*args, **options)

    # ---- evaluation ----

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        if self.engine is None:
            return super().prediction_step(model, inputs, *args, **options)
        return super().prediction_step(StandIn(self.model, self._evaluated), self._padded(inputs), *args, **options)

    def _evaluated(self, call: dict[str, Any]) -> Any:
        """The serial model's output, by all ranks and on all ranks."""
        engine = self.engine
        assert engine is not None
        self.lp_evaluated += 1
        with evaluation.evaluating(engine), engine.workers[0].autocast():
            flat = evaluation.run_chain(engine, evaluation.serial(engine, False), call, self.lp_evaluated)
        last = io_of(engine.program.stages[-1], False)
        return structured(engine.program, last, output_everywhere(engine, flat), False)

    def evaluation_loop(self, *args: Any, **options: Any) -> Any:
        if self.engine is not None:
            self.engine.flush()
        return super().evaluation_loop(*args, **options)

    # ---- checkpoints ----

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.engine is not None and state_dict is None:
            state_dict = self.lp_whole.state(self.engine)
        super()._save(output_dir, state_dict)

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        super()._save_checkpoint(*args, **options)
        if self.engine is not None:  # rank 0 has written it by now; another may have looked for it too early
            self.state.best_model_checkpoint = exchange.from_first(
                self.state.best_model_checkpoint, self.engine.control
            )

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self.engine is not None:  # ranks draw dropout from streams of their own
            save_random(self.engine.workers[0], output_dir)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        super()._load_rng_state(checkpoint)
        if self.engine is not None and checkpoint is not None:
            load_random(self.engine.workers[0], checkpoint)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.engine is not None:
            self.lp_optimizer.gather(self.engine)
        super()._save_optimizer_and_scheduler(output_dir)
        if self.engine is not None:
            self.lp_optimizer.forget()

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if self.engine is not None:
            self.lp_optimizer.scatter()


def _steps_elsewhere(*args: Any, **options: Any) -> None:
    """Each rank's engine has stepped its own part."""


def _list(data: Any) -> list[Any]:
    return list(data.values()) if isinstance(data, dict) else [data]
